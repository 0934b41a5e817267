"""Shows in the reference the description of each field, the values of named defaults, and the parameters of twins."""

import ast
import inspect
import pydoc
import re
from contextlib import suppress
from typing import Any, TypeGuard

import griffe

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# "``first``, ``last``: the rows of the turn." in the docstring of a class.
_NAMES = r"(?:``\w+``(?:, )?)+"
_FIELDS = re.compile(
    rf"^({_NAMES}): (.+?)(?=^{_NAMES}: |\n\n|\Z)", re.MULTILINE | re.DOTALL
)


# Members of the blocks that only the memory uses.
_OF_THE_MEMORY = re.compile(
    r"model_post_init|view|jobs|all_jobs|usage|window|extractor|finish|release|belong_to"
    r"|known_llm|chosen_llm|namespace_of|atruncate|aselect|aopen|amedia|ameasure"
    r"|used_tools|failures_of|job_key|recall_limit|profile_limit"
    r"|(?:anotice|await_|readers?_)\w*"
)


class Fields(griffe.Extension):
    """Called by griffe when the package has been read."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """``x: int = Field(default=1, ge=0, description="...")`` becomes ``x: int = 1`` with a docstring."""
        attr.labels -= {"class-attribute", "instance-attribute"}
        call = attr.value
        if _calls(call, "in_sync"):
            _show_as_method(attr, str(call.arguments[0]))
            return
        if _calls(call, "optional"):
            text = ast.literal_eval(str(call.arguments[0]))
            attr.docstring = griffe.Docstring(text, parent=attr)
            attr.value = "None"
            return
        if not _calls(call, "Field"):
            return
        options = {
            part.name: part.value
            for part in call.arguments
            if isinstance(part, griffe.ExprKeyword)
        }
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
        takes_options = any(
            "Unpack[" in str(parameter.annotation) for parameter in func.parameters
        )
        decorators = [str(each.value) for each in func.decorators]
        # An initializer has its description in the docstring of the class.
        if func.docstring and any(each.startswith("unpacked(") for each in decorators):
            takes_options = True
        if takes_options:
            _show_options(func)
        for parameter in func.parameters:
            parameter.default = _value_of(parameter.default, func.module)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe the fields, and put ``from_defaults`` first and each twin behind its method."""
        _describe_fields(cls)
        if _init_says_nothing(cls):
            cls.del_member("__init__")
        for name, member in [*cls.members.items()]:
            # "self.name = name" describes nothing.
            says_nothing = (
                isinstance(member, griffe.Attribute)
                and member.docstring is None
                and str(member.value) == name
            )
            is_of_blocks = ".blocks." in f"{cls.path}."
            if says_nothing or (is_of_blocks and _OF_THE_MEMORY.fullmatch(name)):
                cls.del_member(name)
        cls.members = {name: cls.members[name] for name in _ordered(cls)}


def _init_says_nothing(cls: griffe.Class) -> bool:
    """Return whether ``__init__`` takes only fields, or belongs to an error, which programs do not make."""
    init = cls.members.get("__init__")
    if not isinstance(init, griffe.Function):
        return False
    kinds = {part.kind for part in [*init.parameters][1:]}
    return cls.name.endswith("Error") or kinds == {griffe.ParameterKind.var_keyword}


def _calls(value: Any, function: str) -> TypeGuard[griffe.ExprCall]:
    """Return whether a value is a call of the function."""
    return (
        isinstance(value, griffe.ExprCall)
        and getattr(value.function, "name", "") == function
    )


def _ordered(cls: griffe.Class) -> list[str]:
    """Return the names of the members in the order in which the reference shows them."""
    twins = {}
    for name, member in cls.members.items():
        if isinstance(member, griffe.Attribute) and _calls(member.value, "in_sync"):
            twins[str(member.value.arguments[0])] = name
    names = [name for name in cls.members if name not in twins.values()]
    if "from_defaults" in names:
        names.remove("from_defaults")
        names.insert(0, "from_defaults")
    ordered = []
    for name in names:
        ordered.append(name)
        if name in twins:
            ordered.append(twins.pop(name))
    # The methods of these twins are the host's.
    return [*ordered, *twins.values()]


def _describe_fields(cls: griffe.Class) -> None:
    """Move the lines about fields from the docstring of the class to the fields."""
    if cls.docstring is None:
        return
    text = inspect.cleandoc(cls.docstring.value)
    for names, description in _FIELDS.findall(text):
        for name in re.findall(r"\w+", names):
            member = cls.members.get(name)
            if isinstance(member, griffe.Attribute):
                sentence = description.strip()
                member.docstring = griffe.Docstring(
                    sentence[:1].upper() + sentence[1:], parent=member
                )
    cls.docstring.value = _FIELDS.sub("", text)


def _show_options(func: griffe.Function) -> None:
    """Show the parameters that the function has when it is imported, with a description of each option."""
    real = pydoc.locate(func.path)
    if not callable(real):
        return
    packed = next(
        part
        for part in func.parameters
        if part.kind == griffe.ParameterKind.var_keyword
    )
    del func.parameters[packed.name]
    for part in inspect.signature(real).parameters.values():
        if part.name not in func.parameters:
            default = (
                "..."
                if part.default is ...
                else getattr(part.default, "__name__", repr(part.default))
            )
            kind = griffe.ParameterKind.keyword_only
            func.parameters.add(
                griffe.Parameter(
                    part.name,
                    annotation=str(part.annotation),
                    kind=kind,
                    default=default,
                )
            )
    if func.docstring is not None:
        func.docstring.value = inspect.getdoc(real) or ""


def _show_as_method(attr: griffe.Attribute, name: str) -> None:
    """Show ``get = in_sync(aget)`` as a method with the parameters of ``aget``; those of the host are unknown."""
    if attr.parent is None:
        return
    method = attr.parent.members.get(name)
    twin = griffe.Function(attr.name, lineno=attr.lineno)
    if isinstance(method, griffe.Function):
        twin.parameters = method.parameters
        twin.returns = method.returns
    twin.docstring = griffe.Docstring(
        f"As ``{name}``, without an event loop.", parent=twin
    )
    attr.parent.set_member(attr.name, twin)


def _value_of(default: Any, module: griffe.Module) -> Any:
    """Return the value behind the name of a constant of this package; any other default as it is."""
    if isinstance(default, griffe.ExprAttribute):
        # A constant of a module that is imported as a whole.
        imported = module.members.get(str(default.first))
        with suppress(griffe.AliasResolutionError):
            target = getattr(imported, "final_target", None)
            if isinstance(target, griffe.Module):
                return _value_of(default.last, target)
        return default
    if not isinstance(default, griffe.ExprName):
        return default
    named = module.members.get(default.name)
    if isinstance(named, griffe.Alias) and named.target_path.startswith(
        f"{module.package.name}."
    ):
        # Two names of one assignment are not told apart; such a default is shown by its name.
        with suppress(griffe.AliasResolutionError):
            named = named.final_target
    return named.value if isinstance(named, griffe.Attribute) else default
