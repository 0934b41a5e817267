"""Questions in many languages find the words that are meant, whatever form they have."""
# ruff: noqa: RUF001 - Russian words have letters that look like Latin ones

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llama_index_memory_ext import TfidfRanker
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.facts.ranking import rank
from llama_index_memory_ext.search.languages import languages_of
from llama_index_memory_ext.search.tfidf import Document

# Ten facts of each language, and questions with the number of the fact that each is about.
KNOWN: dict[str, tuple[str, dict[str, int]]] = {
    "da": (
        """Bor i Aarhus | Arbejder som sygeplejerske | Drikker kaffe uden sukker | Har to katte og en hund | Spiller
        guitar i et band | Er allergisk over for nødder | Søsteren rejser til Norge | Cykler på arbejde hver dag
        | Læser helst krimier | Har fødselsdag i oktober""",
        {
            "Hvor bor jeg?": 0,
            "Hvad kan jeg godt lide at drikke?": 2,
            "Hvilken kat har jeg?": 3,
            "Hvad skal jeg læse på ferien?": 8,
            "Hvem rejste til Norge?": 6,
        },
    ),
    "de": (
        """Wohnt in München | Arbeitet als Lehrerin an einer Grundschule | Trinkt morgens schwarzen Kaffee | Hat
        zwei Katzen und einen Hund | Spielt Geige in einem Orchester | Isst kein Fleisch | Die Schwester zieht
        nach Hamburg | Fährt jeden Tag mit dem Fahrrad | Mag kurze Antworten | Sein Geburtstag ist im Oktober""",
        {
            "Wo wohne ich?": 0,
            "Was soll ich morgens trinken?": 2,
            "Wie heißt meine Katze?": 3,
            "Welches Instrument spiele ich in der Freizeit?": 4,
            "Was esse ich nicht?": 5,
            "Womit fahre ich zur Schule?": 7,
        },
    ),
    "es": (
        """Vive en Sevilla | Trabaja como enfermera en un hospital | Bebe té sin azúcar | Tiene dos gatos y un perro
        | Juega al fútbol los domingos | Es alérgica a las nueces | Su hermana estudia en Madrid | Prefiere
        respuestas cortas | Lee novelas de misterio | Conduce un coche rojo""",
        {
            "¿Dónde vivo?": 0,
            "donde trabajo": 1,
            "¿Qué suelo beber por la tarde?": 2,
            "¿Cómo se llama mi gato?": 3,
            "¿A qué me gusta jugar?": 4,
            "¿Qué leo antes de dormir?": 8,
            "¿Qué coche conduzco?": 9,
        },
    ),
    "fi": (
        """Asuu Tampereella | Työskentelee opettajana | Juo kahvinsa mustana | Omistaa kaksi kissaa | Soittaa
        kitaraa bändissä | On allerginen pähkinöille | Sisko opiskelee Turussa | Pyöräilee töihin joka päivä |
        Lukee mieluiten dekkareita | Syö vain kasviksia""",
        {
            "Missä minä asun?": 0,
            "Mitä työskentelen?": 1,
            "Mitä juon aamulla?": 2,
            "Mitä minun pitäisi lukea?": 8,
            "Mikä kissa minulla on?": 3,
            "Mitä minä syön?": 9,
        },
    ),
    "fr": (
        """Habite à Lyon | Travaille comme infirmière | Boit du thé sans sucre | A deux chats et un chien | Joue du
        violon dans un orchestre | Est allergique aux noix | Sa sœur étudie à Paris | Préfère les réponses
        courtes | Lit surtout des romans policiers | Vient au bureau à vélo""",
        {
            "Où est-ce que j'habite ?": 0,
            "Que dois-je boire le matin ?": 2,
            "Comment s'appelle mon chat ?": 3,
            "De quel instrument puis-je jouer ?": 4,
            "Qu'est-ce que je préfère comme réponse ?": 7,
            "Quels livres lire en vacances ?": 8,
        },
    ),
    "it": (
        """Abita a Torino | Lavora come infermiera | Beve il caffè senza zucchero | Ha due gatti e un cane | Suona
        il violino in un'orchestra | È allergica alle noci | La sorella studia a Roma | Preferisce risposte brevi
        | Legge romanzi gialli | Gioca a calcio la domenica""",
        {
            "Dove abito?": 0,
            "Che lavoro faccio?": 1,
            "Cosa posso bere la mattina?": 2,
            "Come si chiama il mio gatto?": 3,
            "Quali strumenti so suonare?": 4,
            "Che libri leggo di solito?": 8,
        },
    ),
    "nl": (
        """Woont in Utrecht | Werkt als verpleegkundige | Drinkt koffie zonder suiker | Heeft twee katten en een
        hond | Speelt viool in een orkest | Is allergisch voor noten | Haar zus studeert in Gent | Fietst elke
        dag naar kantoor | Leest graag thrillers | Eet geen vlees""",
        {
            "Waar woon ik?": 0,
            "Wat wil ik 's ochtends drinken?": 2,
            "Hoe heet mijn kat?": 3,
            "Welk instrument speel ik?": 4,
            "Wat zal ik op vakantie lezen?": 8,
            "Wat eten we vanavond niet?": 9,
        },
    ),
    "no": (
        """Bor i Bergen | Jobber som sykepleier | Drikker kaffe uten sukker | Har to katter og en hund | Spiller
        gitar i et band | Er allergisk mot nøtter | Søsteren studerer i Oslo | Sykler til jobben hver dag | Leser
        helst krim | Spiser ikke kjøtt""",
        {
            "Hvor bodde jeg?": 0,
            "Hva liker jeg å drikke?": 2,
            "Hva heter katten min?": 3,
            "Hva kan jeg spille?": 4,
            "Hva skal jeg lese i ferien?": 8,
            "Hva kan vi spise i kveld?": 9,
        },
    ),
    "pt": (
        """Mora em Coimbra | Trabalha como enfermeira | Bebe café sem açúcar | Tem dois gatos e um cachorro | Joga
        futebol aos domingos | É alérgica a nozes | A irmã estuda no Porto | Prefere respostas curtas | Lê
        romances policiais | Toca violino numa orquestra""",
        {
            "Onde eu moro?": 0,
            "Qual é o meu trabalho?": 1,
            "O que devo beber de manhã?": 2,
            "Qual é o nome do meu gato?": 3,
            "Que respostas eu prefiro?": 7,
            "O que eu toco?": 9,
        },
    ),
    "ru": (
        """Живёт в Москве | Работает учительницей | Любит зелёный чай | Держит двух кошек и собаку | Играет на
        скрипке в оркестре | У неё аллергия на орехи | Сестра учится в Казани | Ездит на работу на велосипеде |
        Читает детективы | Пьёт кофе без сахара""",
        {
            "Где я живу?": 0,
            "Какой чай я люблю?": 2,
            "Как зовут мою кошку?": 3,
            "На чём я играю?": 4,
            "Что мне почитать? Что я читаю?": 8,
            "Что я пью по утрам?": 9,
        },
    ),
    "sv": (
        """Bor i Uppsala | Arbetar som sjuksköterska | Dricker kaffe utan socker | Har två katter och en hund |
        Spelar gitarr i ett band | Är allergisk mot nötter | Systern studerar i Lund | Cyklar till kontoret varje
        dag | Läser helst deckare | Äter inte kött""",
        {
            "Var bor jag?": 0,
            "Vad vill jag dricka?": 2,
            "Vad heter min katt?": 3,
            "Vad kan jag spela?": 4,
            "Vad ska jag läsa på semestern?": 8,
            "Vad ska vi äta i kväll?": 9,
        },
    ),
    "en": (
        """Lives in Leeds | Works as a nurse | Drinks coffee without sugar | Has two cats and a dog | Plays the
        violin in an orchestra | Is allergic to nuts | Her sister studies in York | Cycles to the office every
        day | Reads mostly crime novels | Eats no meat""",
        {
            "Where am I living?": 0,
            "What should I drink in the morning?": 2,
            "What is my cat called?": 3,
            "Which instrument do I play?": 4,
            "What shall I read on holiday?": 8,
        },
    ),
}
QUESTIONS = [(code, question) for code, (_, questions) in KNOWN.items() for question in questions]


def facts_in(*codes: str) -> list[Fact]:
    return [Fact(content=" ".join(one.split())) for code in codes for one in KNOWN[code][0].split("|")]


def first_of(facts: list[Fact], question: str, languages: Sequence[str] | None = None) -> str:
    ranker = TfidfRanker(languages=languages)
    ranker.add(Document(fact.id, fact.content) for fact in facts)
    return rank(facts, question, ranker=ranker)[0].fact.content


@pytest.mark.parametrize(("code", "question"), QUESTIONS)
def test_a_question_finds_the_fact_with_other_forms_of_its_words(code: str, question: str) -> None:
    """So it does among facts in all languages, and if the language is fixed."""
    facts = facts_in(code)
    wanted = facts[KNOWN[code][1][question]].content
    assert first_of(facts, question) == wanted
    assert first_of(facts, question, languages=[code]) == wanted


@pytest.mark.parametrize(
    ("code", "question"),
    [("de", "Wo wohne ich?"), ("en", "What is my cat called?"), ("fr", "Où est-ce que j'habite ?")],
)
def test_facts_in_several_languages_stand_side_by_side(code: str, question: str) -> None:
    known = facts_in("en", "fr", "de")
    assert first_of(known, question) == facts_in(code)[KNOWN[code][1][question]].content


@pytest.mark.parametrize(
    "question", ["Wer wohnt in München?", "Who lives in Munchen?", "Qui habite à Muenchen ?", "München"]
)
def test_names_and_numbers_are_found_across_languages(question: str) -> None:
    facts = [*facts_in("de"), Fact(content="Mag die 4711")]
    assert "München" in first_of(facts, question) or "Muenchen" in question
    assert first_of(facts, "What was 4711?") == "Mag die 4711"


def test_the_documents_tell_the_language_of_a_question_without_function_words() -> None:
    """Where nothing tells it, only the same forms are found."""
    facts = [*facts_in("de"), Fact(content="Renoviert alte Häuser")]
    assert first_of(facts, "Haus?") == "Renoviert alte Häuser"
    ranker = TfidfRanker()
    ranker.add([Document("1", "Renoviert alte Häuser")])
    assert not ranker.similarities("Haus?")
    assert ranker.similarities("Häuser?")


def test_function_words_find_nothing() -> None:
    facts = [Fact(content="Ich weiß nicht, ob ich das bin"), Fact(content="Wohnt in Bonn")]
    assert first_of(facts, "Wo wohne ich?") == "Wohnt in Bonn"
    ranker = TfidfRanker()
    ranker.add(Document(fact.id, fact.content) for fact in facts)
    assert not ranker.similarities("Was bin ich und wo?")


def test_what_was_removed_is_not_found_in_another_form() -> None:
    ranker = TfidfRanker()
    ranker.add([Document("1", "Wohnt in Bonn"), Document("2", "Isst Brot")])
    assert set(ranker.similarities("Wo wohne ich?")) == {"1"}
    ranker.remove(["1"])
    assert not ranker.similarities("Wo wohne ich?")
    ranker.add([Document("3", "Hier wohnen alle")])
    assert set(ranker.similarities("Wo wohne ich?")) == {"3"}


@pytest.mark.parametrize(
    ("fact", "same", "other"),
    [
        ("يسكن في القاهرة", "من في القاهرة؟", "أين أسكن؟"),
        ("Mieszka w Krakowie", "Co jest w Krakowie?", "Gdzie mieszkam?"),
        ("मुंबई में रहता है", "मुंबई कैसा है?", "मैं कहाँ रहती हूँ?"),
        ("Живе у Києві", "Що є у Києві?", "Який він, Київ?"),
    ],
)
def test_a_language_without_a_stemmer_is_found_by_whole_words(fact: str, same: str, other: str) -> None:
    ranker = TfidfRanker()
    ranker.add([Document("1", fact)])
    assert ranker.similarities(same)
    assert not ranker.similarities(other)


def test_a_script_without_spaces_is_found_by_pairs_of_characters() -> None:
    ranker = TfidfRanker(languages=["de"])
    ranker.add([Document("th", "อาศัยอยู่ในกรุงเทพ"), Document("zh", "住在上海")])
    assert max(ranker.similarities("กรุงเทพเป็นอย่างไร")) == "th"
    assert set(ranker.similarities("上海怎么样?")) == {"zh"}


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Was will ich?", ("de",)),
        ("I'm visiting the Die Zeit office", ("en",)),
        ("Hvor bor jeg?", ("da", "no")),
        ("Katze in Berlin?", ()),
        ("Який він?", ()),
        ("", ()),
        ("我住在哪里", ()),
    ],
)
def test_the_language_of_a_question_is_told_by_its_function_words(text: str, codes: tuple[str, ...]) -> None:
    assert languages_of(text) == codes


def test_fixed_languages_are_the_only_ones() -> None:
    assert languages_of("Wo wohne ich?", ("en", "fr")) == ("en", "fr")
    assert languages_of("Hvor bor jeg?", ("de", "no")) == ("no",)


@pytest.mark.parametrize("codes", [["xx"], ["de", "zh"], [], "german"])
def test_a_language_that_is_not_known_is_refused(codes: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"languages: da, de, en, es, fi, fr, it, nl, no, pt, ru, sv; saw .*None tells"
    ):
        TfidfRanker(languages=codes)
