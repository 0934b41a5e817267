"""Lists words that mean little by themselves, and irregular forms of others, in each language that is stemmed."""
# ruff: noqa: RUF001 - Russian words have letters that look like Latin ones

from __future__ import annotations

# Articles, pronouns, question words, prepositions, conjunctions, auxiliary verbs and the commonest adverbs.
FUNCTION_WORDS = {
    "da": """jeg du han hun den det vi de mig dig ham hende os dem min mit mine din dit dine hans hendes sin sit sine
        vores jeres deres en et som hvad hvem hvor hvornår hvorfor hvordan hvilken hvilket hvilke og eller men at
        om hvis fordi når da så end på i til fra med af for ved hos under over efter før mellem mod uden er var
        været være bliver blev har havde haft have kan kunne skal skulle vil ville må måtte gør gjorde ikke ingen
        noget nogen nogle alle meget mange også kun her der nu lige endnu altid aldrig tit ofte slags sig selv
        man""",
    "de": """ich du er sie es wir ihr mich mir dich dir ihn ihm ihnen uns euch mein meine meinen meinem meiner meines
        dein deine deinen deinem deiner sein seine seinen seinem seiner ihre ihren ihrem ihrer unser unsere der
        die das den dem des ein eine einen einem einer eines was wer wen wem wessen wo wohin woher wann warum
        wieso wie welche welcher welches welchen welchem womit wofür worauf worüber wovon wozu woran und oder
        aber denn dass weil wenn ob als also in im an am auf aus bei beim mit nach seit von vom zu zum zur für
        durch gegen ohne um über unter vor hinter zwischen neben bis wegen während ist sind war waren bin bist
        seid sei gewesen hat habe haben hast hatte hatten habt wird werde werden wirst wurde wurden kann kannst
        können konnte soll sollte muss musste will darf nicht kein keine keinen keinem keiner nichts etwas man
        sich auch nur noch schon sehr so da dort hier jetzt immer nie gern gerne oft mal denn doch diese dieser
        dieses diesen diesem jeder jede jedes alle alles viel viele mehr""",
    "es": """yo tú él ella usted nosotros ustedes ellos ellas me te se lo le les nos mi mis mí tu tus ti su sus
        nuestro nuestra mío mía tuyo el la los las un una unos unas al del qué que quién quien cuál cuáles cuál
        dónde donde adónde cuándo cuando cómo cuánto cuánta cuántos cuántas cuanto por para con sin sobre entre
        desde hasta hacia contra según durante ante de en a y o u e ni pero sino aunque porque si es son era fue
        ser soy eres somos sido está estoy están estaba estar he ha has han haber había hay no sí ya muy más
        menos también tampoco solo siempre nunca algo nada alguien nadie este esta esto estos estas ese esa eso
        aquí allí ahora todo todos toda cada otro otra mucho muchos puedo puede debo debe suele suelo tener tengo
        tienes tiene tienen tenía""",
    "fi": """minä sinä hän me te he minun sinun hänen meidän teidän heidän minua sinua minulla sinulla hänellä minulle
        minusta minulta minut se ne tämä tuo nämä ja tai vai mutta että kun jos koska niin kuin sekä eli mikä
        mitä mistä missä mihin minne milloin miksi miten kuka kenen kenet ketä kumpi millainen millaista minkä
        mitkä joka jota jonka jossa jotka onko on ole olen olet olemme olette ovat oli olin olla ollut ei en et
        emme ette eivät voi voin saa pitää myös vain vielä jo nyt aina usein täällä siellä kanssa ilman ennen
        jälkeen mukaan varten hyvin paljon enemmän kaikki joku jokin jotain mitään""",
    "fr": """je j tu il elle on nous vous ils elles me m te t se s moi toi lui leur leurs eux mon ma mes ton ta tes
        son sa ses notre nos votre vos le la les l un une des du de d au aux ce cet cette ces c cela ça qui que
        qu quoi quel quelle quels quelles où quand comment pourquoi combien lequel laquelle dont et ou mais donc
        or ni car si parce comme puis dans en à sur sous avec sans pour par vers chez entre depuis pendant avant
        après contre est es suis sommes êtes sont était étais être ai as a avons avez ont avait avoir eu peux
        peut dois doit ne n pas plus moins très aussi encore déjà toujours jamais souvent rien tout tous toute
        toutes chaque même autre y ici là maintenant alors quelque quelques beaucoup""",
    "it": """io tu lui lei noi voi loro mi ti si ci vi lo li gli le ne me te sé mio mia miei mie tuo tua tuoi tue suo
        sua suoi sue nostro nostra il la i l un uno una dell al allo alla ai agli alle del dello della dei degli
        delle dal dallo dalla dai nel nello nella nei nelle sul sulla sui di a da in con su per tra fra che chi
        cosa cos quale quali qual dove dov quando come com perché quanto quanta quanti quante e ed o ma se anche
        però quindi è sono sei siamo siete era ero essere stato stata ho hai ha abbiamo avete hanno avevo aveva
        avere posso può devo deve non più meno molto molti già ancora sempre mai solo spesso qui lì ora adesso
        questo questa questi queste quello quella ogni tutto tutti tutte qualcosa niente senza dopo prima""",
    "nl": """ik jij je hij zij ze het wij we jullie mij me jou hem haar ons hen hun mijn jouw zijn onze uw u de een
        dit dat deze die wat wie waar wanneer waarom hoe welk welke waarmee waarvoor waarin waarop waarover en of
        maar want omdat als dan toen dus in op aan bij met naar van voor door over onder uit tot tegen tussen
        zonder na sinds te om is ben bent was waren geweest heb hebt heeft hebben had hadden word wordt worden
        werd kan kun kunt kunnen kon zal zou moet moeten mag wil niet geen niets iets iemand ook nog al wel zo er
        daar hier nu altijd nooit vaak graag heel erg veel meer alle alles elke elk zich""",
    "no": """jeg eg du han hun den det vi dere de meg deg ham henne oss dem min mi mitt mine din di ditt dine hans
        hennes sin si sitt sine vår vårt våre deres en ei et som hva hvem hvor når hvorfor hvordan hvilken
        hvilket hvilke og eller men at om hvis fordi da så enn på i til fra med av for ved hos under over etter
        før mellom mot uten er var vært være blir ble har hadde hatt ha kan kunne skal skulle vil ville må måtte
        gjør gjorde ikke ingen noe noen alle mye mange også bare her der nå ennå alltid aldri ofte slags seg selv
        man""",
    "pt": """eu tu você ele ela nós vocês eles elas me te se lhe nos mim ti meu minha meus minhas teu tua seu sua seus
        suas nosso nossa o a os as um uma uns umas ao aos à às do da dos das no na nos nas num numa pelo pela
        dele dela que quê quem qual quais onde aonde quando quanto quanta quantos quantas por porque para pra com
        sem sobre entre desde até contra durante de em e ou nem mas se é são era foi ser sou és somos sido está
        estou estão estava estar há tinha tem tenho ter não sim já muito muita muitos mais menos também só sempre
        nunca algo nada alguém ninguém este esta isto esse essa isso aquele aquela aqui ali lá agora tudo todo
        todos toda cada outro outra posso pode devo deve costumo costuma""",
    "ru": """я ты он она оно мы вы они меня мне мной тебя тебе его ему им её ей нас нам вас вам их мой моя моё мои
        моего моей моему моим моих мою твой твоя твои свой своя своё свои своего своей своих своим свою наш наша
        наши ваш этот эта это эти этого этой тот та те того той что чего чему чем кто кого кому кем где куда
        откуда когда почему зачем как какой какая какое какие какого какую каким каких сколько чей чья и а но или
        да же ли бы если чтобы потому то в во на с со к ко у о об от до из за по под над при для без через между
        после перед про есть был была было были быть буду будет не ни нет уже ещё еще тоже также только очень
        всегда никогда часто там тут здесь сейчас теперь всё все весь вся каждый каждая каждое себя себе""",
    "sv": """jag du han hon den det vi ni de mig dig honom henne oss er dem min mitt mina din ditt dina hans hennes
        sin sitt sina vår vårt våra deras en ett som vad vem vems var vart när varför hur vilken vilket vilka och
        eller men att om ifall eftersom då så än på i till från med av för vid hos under över efter före mellan
        mot utan är vara varit blir blev har hade haft ha kan kunde ska skall skulle vill ville måste får gör
        gjorde inte ingen inget något någon några alla mycket många också bara här där nu ännu alltid aldrig ofta
        gärna slags sig själv man""",
}

# Each base form with those of its forms that the stemmer takes for other words.
IRREGULAR_FORMS = {
    "da": """bo bor boede | ser se så | gå går gik | får få fik | drikke drak drukket | tage tog | skrive skrev | barn
        børn""",
    "de": """essen esse isst aß gegessen | lesen lese liest las gelesen | sprechen spreche spricht sprach gesprochen |
        helfen helfe hilft half geholfen | treffen treffe trifft traf | nehmen nehme nimmt nahm genommen | geben
        gebe gibt gab gegeben | sehen sehe sieht sah gesehen | vergessen vergesse vergisst vergaß | mögen mag
        magst mochte | wissen weiß wusste | gehen gehe geht ging gegangen | trinken trank getrunken | singen sang
        gesungen | schwimmen schwamm geschwommen | schreiben schrieb geschrieben | bleiben blieb geblieben |
        fahren fuhr gefahren | laufen lief gelaufen | ziehen zieht zog gezogen | fliegen flog geflogen | heißen
        heiße heißt hieß | kommen kam gekommen | finden fand gefunden | tragen trug getragen | schlafen schlief
        geschlafen | wachsen wuchs gewachsen | werfen wirft | sterben stirbt starb gestorben | wohnen wohnst |
        arbeiten arbeitest | lernen lernst""",
    "es": """hacer hago hace hacen hice hizo | decir digo dice dijo | venir vengo viene vienen vino | salir salgo sale
        salen | poner pongo pone puso | ir voy va van fui | jugar juego juega juegan jugó | querer quiero quiere
        quieren quise | saber sé sabe supo | ver veo ve vio | dar doy da dio | pedir pido pide pidió | seguir
        sigo sigue siguió | servir sirvo sirve | oír oigo oye | traer traigo trae | conducir conduzco conduce
        condujo | leer leo lee leyó | medir mido mide | vestir visto viste | caer caigo cae""",
    "fi": """juoda juon juo juot juovat join joi | syödä syön syö syöt syövät söin söi | nähdä näen näkee | tehdä teen
        tekee tein teki | lukea luen lukee luin luki | hoitaa hoidan | tietää tiedän tietää | ajaa ajan | asua
        asun asuu""",
    "fr": """boire bois boit boivent bu | vivre vis vit vivent vécu | lire lis lit lisent lu | dormir dors dort |
        faire fais fait font | aller vais va vas vont | venir viens vient viennent venu | tenir tiens tient |
        savoir sais sait | voir vois voit vu | prendre prends prend prennent pris | apprendre apprends apprend
        appris | écrire écris écrit | conduire conduis conduit | connaître connais connaît | courir cours court
        courent | partir pars part | sortir sors sort | naître né née | préférer préfère préfères | acheter
        achète achètes acheté | œil yeux""",
    "it": """andare vado va vanno | fare faccio fa fanno fatto | venire vengo viene vengono | tenere tengo tiene |
        bere bevo beve bevono bevuto | sapere so sa sanno | dare do dà danno | uscire esco esce escono | dire
        dico dice dicono detto | leggere leggo legge letto | scrivere scrivo scrive scritto | vivere vivo vive
        vissuto | prendere prendo prende preso | nascere nasco nasce nato nata | scegliere scelgo sceglie |
        suonare suono suona""",
    "nl": """eten eet at gegeten | drinken dronk gedronken | gaan ga gaat ging | doen doe doet deed | zien zie ziet
        zag | spreken spreek spreekt sprak gesproken | lezen lees leest las gelezen | schrijven schrijf schrijft
        schreef | komen kom komt kwam | rijden rijd rijdt rij reed | leven leef leeft | geven geef geeft gaf |
        blijven blijf blijft | reizen reis reist | houden houd houdt hou hield | zwemmen zwem zwemt zwom | weten
        weet wist""",
    "no": """bo bor bodde | se ser så | gå går gikk | få får fikk | drikke drakk drukket | ta tar tok | skrive skrev |
        spise spist | barn barna""",
    "pt": """fazer faço faz fazem fez | dizer digo diz disse | vir venho vem veio | ir vou vai vão | ler leio lê leu |
        ver vejo vê viu | sair saio sai | preferir prefiro prefere preferido preferida | dormir durmo dorme |
        pedir peço pede | ouvir ouço ouve | saber sei sabe | querer quero quer | trazer trago traz | vestir visto
        veste | servir sirvo serve | perder perco perde | dar dou dá deu | dirigir dirijo dirige""",
    "ru": """жить живу живёт живет живут жил жила | пить пью пьёт пьет пьют пил пила | есть ем ест едят ел ела | ехать
        еду едет | ездить езжу ездит | ходить хожу ходит | водить вожу водит | носить ношу носит | писать пишу
        пишет | искать ищу ищет | петь пою поёт поет | звать зову зовут зовёт | мочь могу может | хотеть хочу
        хочет хотят | ребёнок ребенок дети детей детьми детям | видеть вижу видит | просить прошу просит | сидеть
        сижу сидит | дочь дочери дочка дочку дочкой | мать матери | имя имени""",
    "sv": """bo bor bodde | äta äter åt ätit | se ser såg | gå går gick | få fick | dricka drack druckit | ta tar tog
        | skriva skrev | läsa läser läste | åka åker | heta heter hette | äga äger ägde | öva övar | barn barnen""",
}
