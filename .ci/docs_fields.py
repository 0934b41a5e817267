"""Says in the reference what a pydantic field is for, the value of a named default, and what a twin takes."""

import ast
import inspect
import pydoc
from contextlib import suppress
from typing import Any

import griffe

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class Fields(griffe.Extension):
    """Called by griffe when the package has been read."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """``x: int = Field(default=1, ge=0, description="...")`` becomes ``x: int = 1`` with a docstring."""
        call = attr.value
        if (
            isinstance(call, griffe.ExprCall)
            and getattr(call.function, "name", "") == "in_sync"
        ):
            _show_as_method(attr, str(call.arguments[0]))
            return
        if (
            not isinstance(call, griffe.ExprCall)
            or getattr(call.function, "name", "") != "Field"
        ):
            return
        options = {
            part.name: part.value
            for part in call.arguments
            if isinstance(part, griffe.ExprKeyword)
        }
        attr.labels.clear()
        attr.value = _value_of(options.get("default"), attr.module)
        bounds = ", ".join(
            f"{word} {options[name]}"
            for name, word in _BOUNDS.items()
            if name in options
        )
        text = ast.literal_eval(str(options.get("description", "''")))
        if attr.docstring is None and (text or bounds):
            attr.docstring = griffe.Docstring(
                f"{text} {bounds.capitalize()}." if bounds else text, parent=attr
            )

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """``limit: int = DEFAULT_LIMIT`` becomes ``limit: int = 50_000``; ``**options: Unpack[...]`` each of them."""
        if any("Unpack[" in str(parameter.annotation) for parameter in func.parameters):
            _show_options(func)
        for parameter in func.parameters:
            parameter.default = _value_of(parameter.default, func.module)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Before the fields comes ``from_defaults``, with which a program begins."""
        if "from_defaults" in cls.members:
            cls.members = {"from_defaults": cls.members["from_defaults"], **cls.members}


def _show_options(func: griffe.Function) -> None:
    """What the function says of itself when it is imported, with a description of each option."""
    real = pydoc.locate(func.path)
    if not callable(real):
        return
    packed = next(
        one for one in func.parameters if one.kind == griffe.ParameterKind.var_keyword
    )
    del func.parameters[packed.name]
    for one in inspect.signature(real).parameters.values():
        if one.name not in func.parameters:
            default = (
                "..."
                if one.default is ...
                else getattr(one.default, "__name__", repr(one.default))
            )
            kind = griffe.ParameterKind.keyword_only
            func.parameters.add(
                griffe.Parameter(
                    one.name, annotation=str(one.annotation), kind=kind, default=default
                )
            )
    if func.docstring is not None:
        func.docstring.value = inspect.getdoc(real) or ""


def _show_as_method(attr: griffe.Attribute, name: str) -> None:
    """``get = in_sync(aget)`` becomes ``get(...)``, with the parameters of ``aget``; of the host's, without them."""
    if attr.parent is None:
        return
    method = attr.parent.members.get(name)
    known = (
        {"parameters": method.parameters, "returns": method.returns}
        if isinstance(method, griffe.Function)
        else {}
    )
    twin = griffe.Function(attr.name, lineno=attr.lineno, **known)
    twin.docstring = griffe.Docstring(
        f"As ``{name}``, without an event loop.", parent=twin
    )
    attr.parent.set_member(attr.name, twin)


def _value_of(default: Any, module: griffe.Module) -> Any:
    """What stands behind the name of a constant of this package; anything else as it is."""
    named = (
        module.members.get(default.name)
        if isinstance(default, griffe.ExprName)
        else None
    )
    if isinstance(named, griffe.Alias) and named.target_path.startswith(
        f"{module.package.name}."
    ):
        # Two names of one assignment are not told apart; such a default is shown by its name.
        with suppress(griffe.AliasResolutionError):
            named = named.final_target
    return named.value if isinstance(named, griffe.Attribute) else default
