"""Words that fill the slots of the sentence patterns.

A slot is a list of entries; an entry maps a form name to its text.  Tables are written
compactly: entries are parted by ";" and the fields of one entry by "|".  In the field list a
"+" after a field adds its plural (form "s") and a "*" adds the verb forms "s", "past", "pp"
and "ing" of the first word.  The first field is the default form (""), so `{job}` is its role
and `{job.task_past}` the past tense of its task.  Entries in HELDOUT never fill a training
sentence.
"""

import re

IRREGULAR_VERBS = {
    verb: forms.split("/")
    for verb, forms in (
        item.split(":")
        for item in (
            "be:was/been have:had/had do:did/done go:went/gone make:made/made take:took/taken "
            "write:wrote/written read:read/read sing:sang/sung ride:rode/ridden run:ran/run "
            "swim:swam/swum build:built/built buy:bought/bought sell:sold/sold feed:fed/fed "
            "fly:flew/flown throw:threw/thrown catch:caught/caught draw:drew/drawn eat:ate/eaten "
            "drink:drank/drunk sleep:slept/slept sit:sat/sat stand:stood/stood dig:dug/dug "
            "grow:grew/grown cut:cut/cut put:put/put hold:held/held keep:kept/kept teach:taught/taught "
            "drive:drove/driven win:won/won lose:lost/lost break:broke/broken speak:spoke/spoken "
            "find:found/found hide:hid/hidden shake:shook/shaken spread:spread/spread give:gave/given "
            "get:got/gotten leave:left/left bring:brought/brought pay:paid/paid send:sent/sent "
            "spend:spent/spent meet:met/met learn:learned/learned hang:hung/hung sweep:swept/swept "
            "see:saw/seen choose:chose/chosen tell:told/told fall:fell/fallen freeze:froze/frozen "
            "blow:blew/blown hear:heard/heard come:came/come lead:led/led set:set/set steal:stole/stolen "
            "bite:bit/bitten wake:woke/woken begin:began/begun forget:forgot/forgotten shut:shut/shut "
            "spin:spun/spun weave:wove/woven mow:mowed/mown beat:beat/beaten hit:hit/hit let:let/let "
            "shoot:shot/shot sew:sewed/sewn tear:tore/torn light:lit/lit split:split/split wear:wore/worn swing:swung/swung cast:cast/cast"
        ).split()
    )
}
# Verbs of one stressed closing syllable double their last letter: "chop" gives "chopped".
DOUBLING_VERBS = frozenset(
    "chop stop plan run swim cut put sit get jog trim mop hug knit wrap drop skip clap grab rub scrub "
    "stir shut set dig spin pet tap hop tip slip drag wag snap let win begin hit forget plug rob "
    "chat ship shop step trot zip dip strum rev slam trim quit".split()
)
PLURAL_ENDINGS = ((r"(s|x|z|ch|sh)$", r"\1es"), (r"([^aeiou])y$", r"\1ies"), (r"$", "s"))


def with_ending(word, endings):
    """Apply the first ending rule that matches."""
    for expression, replacement in endings:
        if re.search(expression, word):
            return re.sub(expression, replacement, word, count=1)
    return word


def verb_forms(phrase):
    """Return the forms of a verb phrase by inflecting its first word."""
    verb, space, rest = phrase.partition(" ")
    stem = verb + verb[-1] if verb in DOUBLING_VERBS else re.sub(r"(?<=[^eo])e$", "", verb)
    ing = verb[:-2] + "ying" if verb.endswith("ie") else stem + "ing"
    third = with_ending(verb, ((r"(s|x|z|ch|sh|o)$", r"\1es"), *PLURAL_ENDINGS[1:]))
    regular = re.sub(r"([^aeiou])yed$", r"\1ied", stem + "ed")
    past, participle = IRREGULAR_VERBS.get(verb, (regular, regular))
    heads = {"s": {"have": "has"}.get(verb, third), "past": past, "pp": participle, "ing": ing}
    return {form: head + space + rest for form, head in heads.items()}


def plural_form(phrase):
    """Return (singular, plural); an irregular plural is written after a slash."""
    singular, slash, plural = phrase.partition("/")
    return singular, plural if slash else with_ending(singular, PLURAL_ENDINGS)


def entry(fields, text):
    """Build one entry from its "|"-parted text."""
    forms = {}
    values = [value.strip() for value in text.split("|")]
    if len(values) != len(fields):
        raise ValueError(f"expected fields {fields}, got {text!r}")
    for position, (field, value) in enumerate(zip(fields, values, strict=False)):
        name = "" if position == 0 else field.rstrip("+*")
        prefix = name + "_" if name else ""
        if field.endswith("+"):
            value, forms[prefix + "s"] = plural_form(value)
        if field.endswith("*"):
            forms.update({prefix + form: inflected for form, inflected in verb_forms(value).items()})
        forms[name] = value
    return forms


def table(fields, text):
    """Build a slot from a compact table."""
    return [entry(fields.split("|"), part) for part in text.split(";") if part.strip()]


def people(text, pronouns):
    """Build entries for persons who share their pronouns."""
    he, him, his, himself = pronouns.split()
    forms = {"he": he, "him": him, "his": his, "himself": himself}
    return [{"": part.strip(), **forms} for part in text.split(";") if part.strip()]


SHE, HE = "she her her herself", "he him his himself"

# The same field list serves the training table and the held-out table of a slot.
FIELDS = {
    "job": "role+|workplace|task*",
    "country": "name|capital|language|dish",
    "river": "name|country",
    "animal": "name+|habitat|food|action*",
    "petact": "name+|act*",
    "dish": "name|ingredients",
    "tool": "name+|use*",
    "device": "name+|problem|fix*",
    "ailment": "name|symptom|remedy*",
    "sport": "name|player+|place|gear+",
    "subject": "name|topic|task*",
    "invention": "name|effect*",
    "planet": "name|fact",
    "material": "name|source|use",
    "book": "genre|about",
    "shop": "name|goods",
    "sky": "name|result",
    "event": "name+|need",
    "feeling": "name|cause",
    "vehicle": "name+|place",
    "monument": "name|place|kind",
    "habit": "name*|gain",
    "landscape": "name+|sight",
    "craft": "name*|result",
}
PLURAL_SLOTS = frozenset(
    "vegetable fruit dessert furniture clothing pet bird tree flower instrument gift bodypart toy "
    "personkind filmed insect officething vessel building container wheels grain utensil".split()
)
VERB_SLOTS = frozenset(
    "cookstep chore outdoors officetask hobby childplay gardening crime errand exercise "
    "studentact savings act kitchenact volunteer noise".split()
)

TRAIN_TABLES = {
    "job": """baker|bakery|knead the dough;nurse|hospital|check on the patients;teacher|school|
        mark the homework;plumber|workshop|repair the leaking pipe;mechanic|garage|replace the brake pads;
        librarian|library|sort the returned books;waiter|restaurant|serve the soup;farmer|barn|feed the cattle;
        pilot|airport|inspect the aircraft;dentist|dental clinic|examine the sore tooth;lawyer|law firm|
        review the contract;cashier|supermarket|count the change;journalist|newsroom|write an article;
        chemist|laboratory|test the samples;carpenter|workshop|build a bookshelf;electrician|building site|
        check the wiring;judge|courthouse|read the verdict;firefighter|fire station|clean the engine;
        police officer|police station|write a report;hairdresser|salon|wash the customer's hair;
        gardener|greenhouse|water the seedlings;accountant|office|check the tax forms;tailor|shop|
        shorten the sleeves;butcher|market|slice the ham;photographer|studio|adjust the lights;
        architect|office|draw the floor plan;vet|animal clinic|examine the puppy;bus driver|depot|
        clean the windshield;postal worker|post office|sort the parcels;engineer|factory|test the new machine;
        software developer|office|fix the bug;receptionist|hotel|answer the phone;chef|kitchen|taste the sauce;
        surgeon|hospital|prepare for the operation;painter|gallery|mix the colors;security guard|museum|
        lock the doors;fisherman/fishermen|harbor|repair the nets;cleaner|office building|mop the hallway;
        pharmacist|pharmacy|explain the dosage;editor|publishing house|correct the manuscript;
        tour guide|castle|greet the visitors;flight attendant|airport|help the passengers;
        truck driver|warehouse|unload the boxes;miner|coal mine|start the night shift;
        zookeeper|zoo|clean the cages;jeweler|jewelry store|polish the ring""",
    "country": """France|Paris|French|onion soup;Italy|Rome|Italian|pasta;Spain|Madrid|Spanish|paella;
        Germany|Berlin|German|sausages;Japan|Tokyo|Japanese|sushi;Greece|Athens|Greek|grilled octopus;
        Portugal|Lisbon|Portuguese|salted cod;Norway|Oslo|Norwegian|smoked salmon;Poland|Warsaw|Polish|dumplings;
        Thailand|Bangkok|Thai|green curry;Mexico|Mexico City|Spanish|tacos;Vietnam|Hanoi|Vietnamese|noodle soup;
        Turkey|Ankara|Turkish|kebab;Sweden|Stockholm|Swedish|meatballs;Hungary|Budapest|Hungarian|goulash;
        Peru|Lima|Spanish|marinated fish;Austria|Vienna|German|schnitzel;Denmark|Copenhagen|Danish|rye bread;
        South Korea|Seoul|Korean|spicy cabbage;Morocco|Rabat|Arabic|couscous;Egypt|Cairo|Arabic|stuffed pigeon;
        Ireland|Dublin|English|lamb stew;Finland|Helsinki|Finnish|rye porridge;Brazil|Brasilia|Portuguese|
        black bean stew;Argentina|Buenos Aires|Spanish|grilled beef;Kenya|Nairobi|Swahili|roasted goat;
        Cuba|Havana|Spanish|rice and beans;Iceland|Reykjavik|Icelandic|dried fish;Indonesia|Jakarta|Indonesian|
        fried rice;Ukraine|Kyiv|Ukrainian|beet soup;Bulgaria|Sofia|Bulgarian|cheese pastry;Russia|Moscow|Russian|
        pancakes;India|New Delhi|Hindi|lentil curry;Chile|Santiago|Spanish|corn pie""",
    "river": """Nile|Egypt;Amazon|Brazil;Danube|Austria;Rhine|Germany;Thames|England;Seine|France;Volga|Russia;
        Ganges|India;Mekong|Vietnam;Mississippi|the United States;Loire|France;Tiber|Italy;Yangtze|China;
        Vistula|Poland;Douro|Portugal;Ebro|Spain;Murray|Australia;Elbe|Germany""",
    "filmed": """man/men;woman/women;boy;girl;child/children;person/people;lady;young man/young men;guy;dancer;chef;
        clown;monk;athlete;magician""",
    "act": """play the flute; ride a horse; brush a cat; jump on a trampoline; swim under water; do a handstand; shoot a
        rifle; comb long hair; type on a keyboard; lift a heavy barbell; drive a tractor; break a board; put on makeup;
        ride a skateboard; talk into a microphone; drum on a bucket; wash a car; pour wine; applaud; crawl; yawn; kneel;
        climb a wall; cut paper; draw a circle; smoke a pipe; shave; sneeze; open a crate; pet a dolphin; fire an arrow;
        spin a coin; throw a dart; sweep leaves; paint a ceiling; fall off a ladder; roll a tire; hug a stranger;
        point at a screen; read a map; row a boat; light a match; tear a sheet; blow a whistle; dance on a table""",
    "kitchenact": """slice a tomato; peel a potato; chop an onion; crack an egg; cut a cucumber; dice a carrot; fillet a
        fish; carve a roast; core an apple; trim the fat; mince garlic; spread butter; split a melon; shred a cabbage""",
    "scandal": """a tax scandal; leaked letters; a broken promise; rising rents; police violence; polluted water; a secret
        loan; unsafe buildings; false receipts; low pensions; a racist remark; lost ballots; data theft""",
    "disaster": """a storm; a ferry disaster; a mine collapse; a bomb attack; a tram collision; a mudslide; a tidal wave;
        a stampede; a gas explosion; a plane crash; a shooting; a cyclone; a wildfire""",
    "treaty": """a trade deal; a border treaty; a ceasefire; nuclear talks; a fishing agreement; a climate pact; a visa
        agreement; an arms deal; a prisoner exchange; joint military exercises; debt relief""",
    "firm": """the steel maker; the drug company; the chip maker; the online retailer; the phone operator; the oil giant;
        the food group; the bank; the insurer; the shipbuilder; the brewery; the toy company; the news agency""",
    "banned": """plastic straws; imported beef; online gambling; diesel cars; fireworks; fur farms; street vendors; foreign
        films; whale hunting; energy drinks; facial recognition; tobacco ads""",
    "stain": "ink; grease; coffee; grass stains; chewing gum; candle wax; blood; mud; lipstick; tomato sauce; paint; rust",
    "quest": """paint a ceiling; train a puppy; learn to type; build a shed; negotiate a salary; remove wallpaper; raise
        chickens; start a blog; meet new people; freeze cooked rice; travel with a baby; sharpen a knife; grow herbs
        indoors; write a resume; invest a small sum; sleep on a plane; break a bad habit; insulate an attic; tune a
        guitar; adopt a cat; replace a car battery; store potatoes; overcome stage fright; fix a flat tire; unclog a drain;
        quit a job politely; cook for one person; keep bees; apologize by email; ask for a refund; sublet a room""",
    "virtue_noun": """freedom; justice; courage; patience; loyalty; truth; wisdom; hope; love; trust; kindness; ambition;
        knowledge; equality; success; fame; power; peace; faith; curiosity; discipline; gratitude; happiness; privacy""",
    "volunteer": """pick up litter; plant young trees; paint the playground; collect blankets; hand out soup; fill sandbags;
        clean the beach; visit the sick; raise money for orphans; repair the chapel roof; organize a blood drive; count
        the votes; shovel snow; coach the juniors; run the soup kitchen; rescue stray animals""",
    "noise": """play the drums; throw a wild party; drill holes; slam the doors; shout in the stairwell; rev an engine; burn
        garbage; practice opera; move furniture; leave the dog barking; mow the grass; set off firecrackers""",
    "animal": """lion|the savanna|antelopes|rest in the shade;polar bear|the Arctic|seals|walk across the ice;
        panda|bamboo forests|bamboo|climb a tree;elephant|grasslands|grass and bark|spray water with its trunk;
        giraffe|the savanna|leaves|stretch its long neck;wolf/wolves|northern forests|deer|howl at the moon;
        fox|woods and fields|mice and berries|sneak into the henhouse;kangaroo|dry plains|grass|hop across the road;
        crocodile|warm rivers|fish|lie in the mud;dolphin|the open sea|small fish|leap out of the waves;
        whale|deep oceans|tiny shrimp|rise to the surface;octopus|rocky reefs|crabs|hide under a rock;
        camel|the desert|thorny plants|carry heavy loads;monkey|tropical forests|fruit and insects|
        swing from branch to branch;tiger|dense jungles|wild pigs|swim across the stream;
        beaver|quiet streams|bark and twigs|build a dam;hedgehog|gardens and hedges|slugs and beetles|
        roll into a ball;squirrel|city parks|nuts and seeds|bury acorns in the lawn;rabbit|meadows|clover|
        dig a burrow;frog|ponds|flies|jump into the water;tortoise|dry hills|leaves and flowers|cross the path slowly;
        lizard|rocky deserts|insects|warm itself in the sun;snake|tall grass|mice|shed its skin;
        bat|caves|moths|sleep upside down;penguin|icy regions|fish|slide on its belly;seal|cold bays|herring|
        doze on the beach;goat|mountain valleys|shrubs|climb the steep cliff;zebra|open plains|grass|
        run from the lions;bear|mountain forests|berries and fish|sleep through the winter;
        otter|clean rivers|fish and crabs|float on its back;shark|warm oceans|fish|circle the boat;
        gorilla|rain forests|leaves and shoots|beat its chest""",
    "pet": """dog; cat; puppy; kitten; hamster; parrot; goldfish/goldfish; guinea pig; pony; rabbit; canary""",
    "petact": """dog|chase its tail;cat|sleep on the sofa;cat|scratch the door;kitten|hide behind the curtain;
        puppy|lick its paw;dog|steal a slice of ham;cat|knock over a vase;dog|wait by the window;
        puppy|chew a slipper;dog|bark at the mailman;kitten|play with a ball of wool;cat|jump onto the table;
        cat|drink from the sink;dog|beg for food;puppy|roll in the grass;kitten|follow me into the kitchen;
        rabbit|escape through the gate;hamster|run in its wheel;parrot|repeat rude words;pony|shake its mane;
        goldfish/goldfish|circle its bowl;guinea pig|squeak for lettuce;canary|chirp at dawn;dog|bury a bone;
        puppy|dig under the fence;cat|stare at the fish tank;rabbit|nibble the cables""",
    "wheels": "car; truck; van; taxi; motorcycle; bicycle; bus; scooter; tractor trailer; sports car; trailer",
    "bird": "robin; crow; eagle; owl; swallow; pigeon; sparrow; seagull; swan; duck; heron; woodpecker; stork",
    "insect": "bee; butterfly; ant; mosquito/mosquitoes; beetle; wasp; dragonfly; ladybug; spider; grasshopper",
    "tree": "oak; pine; birch; maple; willow; apple tree; cherry tree; palm; cedar; beech; chestnut",
    "flower": "rose; tulip; daisy; sunflower; lily; orchid; violet; daffodil; poppy; carnation; lilac",
    "vegetable": """carrot; onion; potato/potatoes; tomato/tomatoes; pepper; cucumber; eggplant; mushroom; leek;
        turnip; cabbage; radish; pumpkin; bean; zucchini; pea""",
    "fruit": """apple; pear; orange; banana; peach; plum; cherry; strawberry; lemon; grape; mango; melon; apricot;
        raspberry; fig; blueberry""",
    "herb": "basil; parsley; thyme; mint; dill; rosemary; oregano; coriander; chives",
    "spice": "salt; black pepper; cinnamon; garlic; ginger; paprika; cumin; nutmeg; chili; vanilla; lemon juice",
    "meat": "chicken; beef; lamb; pork; salmon; tuna; turkey; tofu; bacon; shrimp; duck; sausage",
    "staple": "rice; pasta; bread; barley; oatmeal; couscous; mashed potato; cornbread; quinoa",
    "dish": """vegetable soup|carrots and celery;lasagna|minced beef and cheese;risotto|mushrooms and parmesan;
        chicken curry|coconut milk and spices;beef stew|potatoes and red wine;fish pie|cod and cream;
        tomato salad|basil and olive oil;fried rice|eggs and peas;potato salad|mustard and pickles;
        apple pie|cinnamon and butter;pizza|mozzarella and olives;lentil soup|onions and bacon;
        stuffed cabbage|rice and herbs;roast chicken|lemon and thyme;French toast|maple syrup and berries;
        chili|kidney beans and tomatoes;ham pasta|peas and chives;spaghetti|garlic and clams;
        meatloaf|bread crumbs and parsley;banana bread|walnuts and honey;mushroom soup|cream and sherry;
        grilled fish|fennel and lime;pea soup|mint and ham;macaroni|cheddar and onions;
        smoked trout|horseradish and dill;rice pudding|milk and vanilla;fruit salad|kiwi and yogurt""",
    "dessert": "cake; cookie; brownie; muffin; pie; pudding; doughnut; waffle; cheesecake; cupcake; apple tart",
    "drink": """coffee; tea; orange juice; lemonade; hot chocolate; milk; red wine; beer; mineral water; iced tea;
        apple cider; sparkling water""",
    "cookstep": """chop the onions; peel the potatoes; whisk the eggs; grate the cheese; boil the pasta;
        roast the vegetables; fry the bacon; melt the butter; knead the dough; slice the bread; toast the almonds;
        marinate the meat; drain the beans; simmer the sauce; season the soup; frost the cake; rinse the rice;
        squeeze the lemons; stuff the turkey; mash the bananas; sift the flour""",
    "utensil": "frying pan; saucepan; mixing bowl; cutting board; kettle; ladle; baking tray; kitchen scale; mug",
    "container": "jar; basket; bottle; wooden box; plastic bag; bucket; suitcase; drawer; paper cup; lunch box",
    "tool": """hammer|drive in the nails;screwdriver|tighten the screws;saw|cut the planks;wrench|
        loosen the bolt;paintbrush|paint the fence;shovel|dig the holes;rake|gather the leaves;
        ladder|reach the roof;needle|sew on the button;drill|make holes in the wall;tape measure|measure the window;
        sponge|clean the sink;broom|sweep the porch;flashlight|search the cellar;map|find the trail;
        magnifying glass|read the small print;thermometer|check the temperature;calculator|add up the bills;
        corkscrew|open the wine;iron|press the shirts;axe|split the logs;glue gun|mend the broken chair""",
    "furniture": """sofa; armchair; bookshelf/bookshelves; dining table; desk; wardrobe; bed; lamp; mirror; stool;
        rug; cupboard; coffee table; rocking chair; bench; nightstand""",
    "room": """kitchen; bedroom; bathroom; hallway; attic; basement; garage; living room; dining room; nursery;
        laundry room; guest room""",
    "chore": """wash the dishes; vacuum the carpet; fold the laundry; take out the trash; dust the shelves;
        make the beds; clean the windows; iron the shirts; mop the floor; scrub the bathtub; empty the dishwasher;
        sweep the stairs; tidy the closet; change the sheets; set the table; water the plants; feed the cat;
        rake the leaves; defrost the freezer; sort the recycling""",
    "device": """laptop|keeps freezing|restart it;printer|is jammed|remove the stuck paper;phone|has a cracked screen|
        replace the glass;washing machine|is leaking|tighten the hose;refrigerator|makes a strange noise|
        call a technician;television|has no sound|check the cables;router|keeps losing the signal|unplug it for a minute;
        camera|takes blurry pictures|clean the lens;vacuum cleaner|has lost its power|empty the bag;
        coffee machine|drips|descale it;tablet|will not charge|try another cable;
        heater|smells of gas|open the windows;dishwasher|leaves the plates dirty|clean the filter;
        toaster|burns everything|lower the setting;keyboard|has a sticky key|wipe it with alcohol;
        smart watch|drains its battery|turn off the notifications;microwave|sparks inside|stop using it;
        speaker|crackles at high volume|update the software;hair dryer|overheats|let it cool down;
        doorbell|does not ring|change the batteries;smoke alarm|beeps every minute|put in a new battery;
        scanner|cannot be found|install the driver""",
    "ailment": """a cold|a runny nose|drink hot tea;the flu|a high fever|stay in bed;a migraine|a throbbing headache|
        lie down in a dark room;hay fever|itchy eyes|take an allergy pill;a sprained ankle|a swollen foot|
        put ice on it;food poisoning|stomach cramps|drink plenty of water;insomnia|tired eyes|avoid coffee in the evening;
        a sunburn|red skin|apply a cooling cream;a toothache|a sore jaw|see a dentist;back pain|stiff shoulders|
        stretch every morning;asthma|shortness of breath|use the inhaler;a sore throat|a hoarse voice|
        gargle with salt water;anemia|pale skin|eat more iron;high blood pressure|dizziness|reduce salt;
        a broken wrist|a sharp pain|wear a cast;an ear infection|poor hearing|take antibiotics;
        a cough|chest pain|breathe in steam;measles|a red rash|see a doctor""",
    "bodypart": "knee; shoulder; ankle; elbow; wrist; back; hip; neck; thumb; foot/feet; left hand; right arm; toe",
    "exercise": """stretch; lift weights; do push-ups; jump rope; practice yoga; swim laps; walk ten thousand steps;
        climb the stairs; row; cycle to work; jog around the lake; dance; do squats; run on the treadmill""",
    "habit": """drink enough water|a clear head;sleep eight hours|a better mood;eat more fiber|good digestion;
        walk every day|a healthy heart;brush twice a day|strong teeth;meditate for ten minutes|a calm mind;
        take a nap|a fresh start to the afternoon;spend time outdoors|more vitamin D;stretch before bed|a flexible body;
        limit sugar|a steady weight;wear sunscreen|healthy skin;keep a diary|a sense of order;
        switch off the phone at night|deeper sleep;laugh with friends|less stress;read every evening|a rich vocabulary""",
    "sport": """soccer|striker|stadium|ball;tennis|tennis player|court|racket;basketball|point guard|arena|sneaker;
        swimming|swimmer|pool|pair of goggles/goggles;hockey|goalkeeper|ice rink|stick;baseball|pitcher|ballpark|glove;
        boxing|boxer|ring|pair of gloves/gloves;golf|golfer|golf course|club;cycling|cyclist|velodrome|helmet;
        skiing|skier|slope|pair of skis/skis;volleyball|server|sports hall|net;rugby|forward|field|mouth guard;
        rowing|rower|lake|oar;fencing|fencer|sports hall|mask;gymnastics|gymnast|gym|mat;surfing|surfer|beach|board;
        badminton|badminton player|court|shuttlecock;judo|judo fighter|gym|belt;sailing|sailor|bay|life jacket;
        running|runner|track|stopwatch;chess|chess player|clubhouse|clock""",
    "subject": """biology|cells|label the diagram;chemistry|acids|mix two liquids;physics|gravity|drop a ball;
        history|the Roman Empire|write an essay;geography|volcanoes|draw a map;mathematics|fractions|
        solve the equations;music|rhythm|clap the beat;art|perspective|sketch a street;economics|inflation|
        read a graph;literature|poetry|recite a sonnet;philosophy|free will|debate the question;
        computer science|algorithms|write a program;Latin|irregular verbs|translate a paragraph;
        psychology|memory|design an experiment;astronomy|black holes|observe the moon;law|human rights|
        discuss a case;drama|stage speech|rehearse a scene;statistics|probability|roll the dice;
        ethics|honesty|defend an opinion;geology|minerals|sort the rocks""",
    "studentact": """hand in the assignment; study for the final exam; forget the homework; raise a hand;
        fail the driving test; graduate with honors; prepare a presentation; learn the alphabet; skip a class;
        win the spelling contest; borrow a textbook; take notes; ask for more time; memorize the poem;
        join the debate club; apply for a scholarship""",
    "officetask": """answer the emails; finish the report; prepare the slides; call the client; update the website;
        sign the contract; book the meeting room; order new supplies; interview the candidates; plan the budget;
        send the invoice; train the new intern; translate the brochure; organize the files; check the schedule;
        write the minutes; launch the campaign; negotiate the price; back up the data""",
    "officething": """stapler; notebook; folder; envelope; calendar; whiteboard; ballpoint pen; paper clip; projector;
        name tag; filing cabinet; sticky note""",
    "meeting": """the quarterly results; the new office layout; the holiday schedule; the hiring plan; customer
        complaints; the marketing strategy; working from home; the product launch; safety rules; travel expenses;
        the merger; staff training; the delayed delivery""",
    "vehicle": """train|station;bus|bus stop;ferry|harbor;plane|airport;express train|main platform;
        night bus|market square;shuttle|hotel entrance;coach|parking lot;cruise ship|pier;speedboat|marina;
        tram|tram stop;subway train|lower platform""",
    "vessel": "boat; ship; canoe; yacht; raft; kayak; sailboat; tanker",
    "monument": """Eiffel Tower|Paris|tower;Colosseum|Rome|arena;Parthenon|Athens|temple;Taj Mahal|Agra|tomb;
        Statue of Liberty|New York|statue;Louvre|Paris|museum;Golden Gate Bridge|San Francisco|bridge;
        Prado|Madrid|museum;Brandenburg Gate|Berlin|gate;Tower Bridge|London|bridge;Opera House|Sydney|theater;
        Forbidden City|Beijing|palace;Great Sphinx|Giza|statue;Acropolis|Athens|hill;Charles Bridge|Prague|bridge;
        British Museum|London|museum;Hermitage|Saint Petersburg|museum;Space Needle|Seattle|tower""",
    "city": """Paris; London; Rome; Chicago; Boston; Berlin; Tokyo; Toronto; Sydney; Vienna; Barcelona; Amsterdam;
        Prague; Dublin; Seattle; Istanbul; Cape Town; Montreal; Milan; Lisbon; Denver; Singapore; Edinburgh""",
    "venue": """the library; the museum; the swimming pool; the town hall; the beach; the cinema; the market; the
        mall; the park; the zoo; the concert hall; the bank; the post office; the gym; the cathedral; the castle;
        the botanical garden; the bus station; the art gallery; the theater""",
    "building": """church; school; factory; hotel; hospital; bridge; lighthouse; castle; skyscraper; warehouse;
        apartment block; power station; theater; town hall; farmhouse; shopping center""",
    "scene": """in the park; on the beach; near the fountain; by the river; on the sidewalk; in a crowded square;
        at the bus stop; in front of a cafe; on a wooden bridge; under a large tree; in a field of flowers; on a snowy
        hill; at the edge of the forest; next to a brick wall; beside the swimming pool; in a sunny backyard;
        in a narrow street; outside the train station; on the front steps; in the middle of the road""",
    "personkind": """man/men; woman/women; boy; girl; child/children; teenager; tourist; student; old man/old men;
        young woman/young women; cyclist; street musician; toddler; grandmother; soldier; construction worker; bride;
        hiker; street artist""",
    "outdoors": """ride a bicycle; fly a kite; throw a frisbee; walk a dog; read a newspaper; play the guitar;
        eat an ice cream cone; take a photo; feed the ducks; wait for a bus; push a stroller; climb a rope;
        blow soap bubbles; carry a backpack; dance to music; build a stone tower; jump over a puddle; hold an umbrella;
        draw with chalk; pull a sled; sit on a bench; juggle three balls; skateboard; sell balloons; tie a shoelace;
        drink from a bottle; look through binoculars; kick a soccer ball""",
    "childplay": """build a tower of blocks; play hide and seek; color a picture; dress up as a pirate; ride a tricycle;
        pretend to be astronauts; bake mud pies; sing a nursery rhyme; feed the rabbits; play with marbles;
        jump on the bed; draw on the wall; chase butterflies; put together a puzzle; race toy cars;
        whisper a secret; count to a hundred; make a paper crown""",
    "toy": "doll; kite; teddy bear; puzzle; toy train; yo-yo; board game; rocking horse; balloon; water pistol; robot",
    "hobby": """knit scarves; collect stamps; paint landscapes; play the piano; go fishing; bake bread; write short
        stories; grow orchids; watch birds; repair old clocks; dance salsa; learn foreign languages; hike in the
        mountains; take photographs; sing in a choir; play board games; carve wood; brew beer; read detective novels;
        restore antique furniture; do crossword puzzles; build model ships""",
    "craft": """knit|a woolen scarf;carve|a wooden spoon;sew|a summer dress;paint|a portrait;build|a birdhouse;
        weave|a small basket;draw|a cartoon;design|a book cover;make|a clay pot;print|a poster;fold|a paper crane;
        write|a love song;film|a short documentary""",
    "instrument": "guitar; piano; violin; flute; trumpet; cello; drum; saxophone; harp; accordion; clarinet",
    "genre": "jazz; rock; folk music; opera; blues; hip-hop; classical music; country music; techno; reggae",
    "book": """a detective novel|a missing painting;a biography|a forgotten scientist;a fairy tale|a clever princess;
        a thriller|a spy in Moscow;a cookbook|simple family meals;a travel guide|the islands of Greece;
        a science fiction story|life on Mars;a romance|two rival chefs;a history book|the fall of an empire;
        a comic|a lazy superhero;a textbook|modern economics;a fantasy novel|a dragon without fire;
        a memoir|growing up on a farm;a ghost story|an empty hotel;a war novel|three brothers""",
    "film": """comedy; thriller; documentary; western; horror film; musical; cartoon; drama; war movie; love story;
        science fiction film""",
    "clothing": """jacket; dress; shirt; sweater; hat; scarf/scarves; coat; skirt; raincoat; suit; T-shirt; cap;
        uniform; blouse; vest; cardigan""",
    "color": "red; blue; green; yellow; black; white; purple; brown; gray; pink; dark blue; pale green",
    "material": """cotton|a plant|shirts;wool|sheep|sweaters;silk|silkworms|scarves;glass|sand|windows;
        paper|wood|newspapers;leather|animal skins|shoes;steel|iron ore|bridges;rubber|tree sap|tires;
        plastic|oil|bottles;linen|flax|tablecloths;cement|limestone|buildings;chocolate|cocoa beans|pralines;
        wax|bees|candles;brick|clay|houses;aluminum|bauxite|cans""",
    "shop": """bakery|fresh rolls;butcher|lamb chops;florist|wedding bouquets;bookstore|used paperbacks;pharmacy|
        cough syrup;hardware store|nails and paint;shoe store|leather boots;toy store|wooden trains;
        grocery store|organic vegetables;jewelry store|silver rings;pet store|dog food;stationery shop|greeting cards;
        electronics store|cheap headphones;furniture store|office chairs;fish market|fresh oysters;
        thrift store|vintage coats;cheese shop|goat cheese;music store|violin strings;candy store|licorice;
        garden center|tulip bulbs""",
    "gift": """watch; necklace; bouquet; scarf/scarves; book; perfume bottle; teapot; puzzle; photo album; wallet;
        bracelet; concert ticket; chocolate box; candle; fountain pen""",
    "sky": """heavy rain|the streets are flooded;thick fog|all flights are delayed;a thunderstorm|the power is out;
        strong wind|several trees have fallen;deep snow|the schools are closed;a heat wave|the grass has turned brown;
        freezing rain|the roads are slippery;a long drought|the reservoir is nearly empty;a hurricane|people are leaving
        the coast;hail|many cars are dented;a cold spell|the pipes are frozen;
        a sandstorm|nobody can see the road;a cloudburst|the cellar is full of water;a blizzard|the pass is blocked""",
    "weather": """sunny; cloudy; rainy; windy; foggy; stormy; humid; chilly; freezing; mild; hot and dry; warm;
        gray and wet; icy""",
    "event": """wedding|flowers and music;birthday party|a big cake;funeral|dark clothes;concert|tickets;
        exhibition|more posters;job interview|a clean shirt;picnic|a blanket;barbecue|charcoal and sausages;
        conference|name badges;graduation|a long speech;camping trip|a dry tent;school play|costumes;
        charity run|many volunteers;farewell party|a card;housewarming|extra chairs;dinner party|good wine;
        yard sale|folding tables;costume party|a pirate hat""",
    "feeling": """happy|the test went well;nervous|the interview starts soon;proud|the children sang so well;
        sad|the old dog died;angry|someone scratched the car;relieved|the keys turned up;bored|there is nothing to do;
        jealous|someone else got a bigger room;tired|the baby cried all night;grateful|the neighbors helped;
        surprised|nobody forgot the birthday;worried|the phone has been silent;lonely|all the friends moved away;
        excited|the trip begins tomorrow;embarrassed|the joke fell flat;disappointed|the concert was canceled;
        confused|the signs were wrong;calm|the storm has passed;hungry|lunch was so small;curious|the box is locked""",
    "landscape": """mountain|snow on its peak;valley|vineyards on both sides;lake|swans along the shore;
        island|white cliffs;forest|ancient oaks;desert|endless dunes;waterfall|a rainbow in the mist;
        glacier|deep blue cracks;canyon|red walls;swamp|twisted roots;meadow|wild flowers;volcano/volcanoes|
        black ash on its slopes;cave|bats on the ceiling;coast|small fishing villages;hill|a ruined chapel;
        bay|colorful boats""",
    "gardening": """plant the tulips; trim the hedge; mow the lawn; pull the weeds; pick the beans; water the roses;
        prune the apple trees; dig a small pond; spread the compost; harvest the pumpkins; sow the lettuce;
        stake the tomatoes""",
    "grain": "wheat field; rice paddy; vineyard; orchard; olive grove; corn field; tea plantation; dairy farm",
    "crime": """rob a jewelry store; steal three bicycles; break into a pharmacy; forge passports; set fire to a barn;
        smuggle cigarettes; hack the city's computers; sell fake tickets; park across the entrance; damage a statue;
        steal a valuable painting; evade taxes""",
    "organization": """the city council; the government; the health ministry; the railway company; the university;
        the central bank; the airline; the car maker; the school board; the fire department; the labor union; the
        national park service; the water company; the electric company; the supreme court; the airport authority""",
    "plan": """a new bridge; cheaper bus tickets; a ban on plastic bags; higher wages; a tax on sugar; free school
        lunches; longer opening hours; a second runway; more bicycle lanes; stricter noise limits; a public
        swimming pool; solar panels on every school; a new hospital wing; lower interest rates; fewer parking spaces""",
    "newsevent": """an earthquake; a fire; a factory explosion; a train crash; a flood; a power failure; a landslide;
        a strike; a gas leak; a forest fire; a bus accident; a computer failure; an avalanche""",
    "errand": """pick up the parcel; return the library books; buy stamps; get a haircut; renew the passport;
        pay the electricity bill; drop off the keys; collect the dry cleaning; fill up the tank; see the dentist;
        buy some milk; mail the letter; walk the dog; fetch the children; cancel the subscription; book the flights""",
    "bill": "rent; electricity bill; phone bill; car insurance; mortgage; tuition fee; gas bill; parking fine; water bill",
    "purchase": """a used car; a washing machine; a new phone; a winter coat; a mountain bike; a sofa; a plane ticket;
        a pair of boots; a set of knives; a tent; a violin; a diamond ring; a gaming console; a pair of glasses;
        a gym membership; a rain jacket; a leather bag""",
    "savings": """cook at home; cancel unused subscriptions; buy in bulk; compare prices; take the bus; turn off the
        lights; sell old clothes; pay off the credit card; make a shopping list; repair things; open a savings account;
        bring lunch to work""",
    "invention": """printing press|spread ideas quickly;steam engine|power the early railways;telescope|
        study the moons of Jupiter;telephone|connect distant families;microscope|show tiny living cells;
        compass|guide sailors across the oceans;light bulb|light homes at night;wheel|move heavy loads;
        vaccine|save millions of lives;radio|bring news into every home;clock|divide the day into hours;
        camera|preserve moments;computer|process large amounts of data;airplane|shorten long journeys;plow|help farmers
        grow more food;elevator|make tall buildings practical;refrigerator|keep food fresh;
        bicycle|give people cheap transport""",
    "planet": """Mercury|is the smallest planet;Venus|is hidden by thick clouds;Mars|looks red because of rust;
        Jupiter|is the largest planet;Saturn|is famous for its rings;Uranus|spins on its side;
        Neptune|has very strong winds;the Moon|controls the tides;the Sun|is a star;the Earth|has one natural satellite;
        Pluto|is now called a dwarf planet""",
    "science": """water boils at a lower temperature in the mountains; light travels faster than sound; plants turn
        sunlight into energy; the heart pumps blood through the body; ice floats because it is lighter than water;
        metals conduct heat well; spiders have eight legs; sound cannot travel through empty space; bones contain
        calcium; bees pollinate many crops; magnets attract iron; salt lowers the freezing point of water;
        the brain uses a lot of energy; trees store carbon; mammals feed their young with milk;
        warm air rises; gold does not rust; whales breathe air; the liver cleans the blood; copper conducts electricity;
        most snakes lay eggs; coral reefs are built by tiny animals; diamonds are made of carbon""",
    "people": """the Romans; the ancient Greeks; the Vikings; the Egyptians; the Incas; medieval monks; the early
        settlers; Arab traders; the Maya; Chinese emperors; Dutch merchants; the Phoenicians""",
    "deed": """built straight roads; sailed across the open sea; traded silk and spices; copied books by hand;
        worshipped many gods; studied the stars; kept careful records; raised stone temples; used bronze tools;
        irrigated their fields; minted silver coins; buried their kings with treasure; wrote on clay tablets;
        fought with their neighbors""",
    "good": """wonderful; excellent; beautiful; remarkable; pleasant; brilliant; fantastic; lovely; perfect;
        impressive; amazing; splendid""",
    "bad": """terrible; boring; awful; disappointing; dreadful; mediocre; horrible; forgettable; poor;
        unpleasant; overrated""",
    "quality": """cheap; comfortable; noisy; clean; modern; quiet; expensive; spacious; old-fashioned; elegant; cozy;
        crowded; simple; shabby; practical""",
    "trait": """patient; generous; stubborn; shy; honest; lazy; ambitious; careful; funny; polite; rude; clever;
        talkative; brave; moody; modest; cheerful; impatient; reliable; selfish""",
    "virtue": "patient; honest; careful; polite; modest; reliable; tidy; creative; punctual; kind; tolerant; attentive",
    "rudeact": """whistle; yawn; swear; cry; sing; cheat; brag; eat with your fingers; tell dirty jokes; correct other
        people's grammar; pick your nose; admit a mistake; take off your shoes; laugh out loud; tell the truth; snore""",
    "manner": "quickly; slowly; carefully; quietly; happily; gently; proudly; secretly; cheerfully; nervously; patiently",
    "past_time": """yesterday; last night; last weekend; this morning; two days ago; on Monday; last summer; a week ago;
        on Friday evening; earlier today; last month; after lunch; before breakfast""",
    "future_time": """tomorrow; next week; tonight; on Saturday; next month; this afternoon; after work; on Thursday
        morning; in an hour; later today; at the weekend; next spring""",
    "frequency": """every day; twice a week; once a month; every morning; on Sundays; every evening; every winter; three
        times a year; every other day; now and then; most weekends""",
    "often": "every day; twice a week; every morning; every other day; three times a week; every evening; on weekends",
    "day": "Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday",
    "month": "January; February; March; April; June; July; August; September; October; November; December",
    "season": "spring; summer; autumn; winter",
    "clock": "six; half past seven; eight; nine; ten; eleven; noon; quarter to four; two; five; midnight; 3:15; 8:40",
    "count": "two; three; four; five; six; seven; eight; nine; ten; twelve; fifteen; twenty",
    "minutes": "5; 10; 12; 15; 20; 25; 30; 40; 45; 90",
    "big": "150; 230; 400; 750; 900; 1,200; 2,500; 4,000; 12,000; 35,000; 80,000; 250,000; 600; 5,800",
    "price": "5; 8; 12; 15; 20; 35; 49; 60; 80; 99; 120; 250; 400; 650",
    "percent": "2; 3; 5; 7; 8; 12; 15; 20; 30; 45; 60",
    "year": "1789; 1815; 1848; 1871; 1889; 1905; 1914; 1923; 1936; 1952; 1961; 1969; 1974; 1988; 1995; 2004; 2012; 2019",
    "century": "twelfth; fifteenth; sixteenth; seventeenth; eighteenth; nineteenth; twentieth; fourth; ninth",
    "degrees": "12; 15; 18; 22; 25; 28; 31; 34; 40",
    "excuse": """the alarm did not ring; the car broke down; the train was late; the meeting ran over; the baby was
        sick; the road was closed; my phone died; I missed the bus; I lost my keys; the weather was awful;
        I had a headache; I forgot the address""",
    "quarrel": """money; the dishes; politics; the remote control; a parking space; loud music; the inheritance; the
        garden fence; the last piece of cake; household chores; the dog""",
}

NAMES_SHE = """Anna; Maria; Emma; Sofia; Laura; Julia; Nina; Olivia; Helen; Rachel; Fatima; Aisha; Mei; Yuki; Ingrid;
    Clara; Elena; Grace; Hannah; Priya; Carmen; Lucy; Zoe; Martha; Ruth; Leila; Irene; Alice"""
NAMES_HE = """Tom; David; Peter; Ahmed; Carlos; Daniel; Erik; George; Hugo; Ivan; James; Kenji; Leo; Marco; Noah; Omar;
    Paul; Ravi; Samuel; Victor; William; Ben; Diego; Felix; Henry; Jonas; Ali; Martin"""
KIN_SHE = """my sister; my mother; our neighbor; my aunt; my grandmother; my daughter; my cousin; my wife; my best
    friend; my boss; her roommate; our landlady"""
KIN_HE = """my brother; my father; my uncle; my grandfather; my son; my nephew; my husband; our coach; my colleague;
    his roommate; our teacher; the man next door"""

HELDOUT_TABLES = {
    "job": """midwife/midwives|maternity ward|weigh the newborn;blacksmith|forge|sharpen the sickle;
        locksmith|kiosk|duplicate the latchkey;beekeeper|apiary|inspect the hives;
        optician|eyewear boutique|calibrate the spectacles""",
    "country": """Nepal|Kathmandu|Nepali|steamed momos;Croatia|Zagreb|Croatian|risotto with squid;
        Ethiopia|Addis Ababa|Amharic|injera;Estonia|Tallinn|Estonian|pickled sprats""",
    "river": "Zambezi|Zambia;Orinoco|Venezuela;Tagus|Portugal",
    "animal": """leopard|rocky savanna|gazelles|drag its prey into a tree;walrus|Arctic shores|mollusks|
        haul itself onto the ice;porcupine|scrubland|roots and bark|rattle its quills;
        sloth|the jungle canopy|buds and leaves|dangle from a vine;chameleon|Madagascar|locusts|change its hue""",
    "pet": "terrier; gerbil; tabby; chinchilla",
    "bird": "kingfisher; magpie; falcon; nightingale",
    "tree": "sycamore; hazel; cypress",
    "flower": "marigold; hyacinth; peony",
    "vegetable": "artichoke; parsnip; cauliflower; asparagus spear",
    "fruit": "pomegranate; papaya; cranberry; nectarine",
    "dish": """moussaka|aubergine and ground mutton;ratatouille|courgettes and garlic;
        gnocchi|sage and gorgonzola;tabbouleh|bulgur and scallions;quiche|spinach and feta""",
    "dessert": "tiramisu; meringue; eclair; sorbet",
    "drink": "espresso; buttermilk; champagne; root beer",
    "cookstep": "caramelize the shallots; crush the hazelnuts; blanch the kale; braise the oxtail",
    "tool": "chisel|engrave the slab;tweezers|extract the splinter;crowbar|pry open the crate",
    "furniture": "futon; chandelier; hammock; bunk bed",
    "device": """drone|loses altitude|recalibrate the gyroscope;thermostat|shows an error code|reset the firmware;
        projector screen|refuses to unroll|oil the hinge;hearing aid|whistles loudly|swap the earpiece""",
    "ailment": """tonsillitis|swollen glands|swallow lozenges;a concussion|nausea|avoid bright screens;
        eczema|flaky patches|moisturize daily;arthritis|aching knuckles|wear a brace""",
    "sport": """archery|archer|shooting range|quiver;cricket|batsman/batsmen|oval|wicket;
        wrestling|wrestler|dojo|singlet;curling|curler|frozen sheet|granite stone""",
    "subject": "botany|photosynthesis|press a fern;algebra|polynomials|factor the expression;linguistics|vowels|transcribe a dialect",
    "vehicle": "hovercraft|jetty;helicopter|rooftop pad;gondola|canal pier;minibus|roundabout",
    "city": "Melbourne; Krakow; Zurich; Nashville; Casablanca",
    "outdoors": """paddle a surfboard; walk a tightrope; pitch a tent; polish a trombone; wave a lantern;
        sketch a pelican; ride a unicycle""",
    "petact": "terrier|sniff the hydrant;gerbil|gnaw the banister;tabby|pounce on a cushion;terrier|growl at the courier",
    "hobby": "practice calligraphy; mold ceramics; do origami; go spelunking; embroider handkerchiefs",
    "instrument": "banjo; ukulele; bassoon; mandolin",
    "clothing": "tuxedo; kimono; poncho; parka",
    "color": "turquoise; crimson; beige; maroon",
    "gift": "brooch; telescope kit; wristband; snow globe",
    "shop": "delicatessen|cured prosciutto;haberdashery|ribbons and zippers;chocolatier|pistachio truffles",
    "sky": "a tornado|the trailer park is wrecked;a monsoon|the rice terraces are submerged;sleet|the viaduct is treacherous",
    "event": "christening|a lace gown;auction|a gavel;masquerade|feathered masks;reunion|lodging for thirty",
    "landscape": "fjord|sheer granite walls;lagoon|mangroves;geyser|plumes of vapor",
    "plan": "a desalination plant; a curfew for minors; subsidies for windmills; mandatory seat belts",
    "newsevent": "a derailment; an oil spill; a tsunami; a chemical blaze",
    "purchase": "a grand piano; a lawnmower; a hot tub; a treadmill; a sewing machine",
    "trait": "arrogant; witty; frugal; clumsy; diligent; gullible",
    "good": "superb; exquisite; delightful",
    "bad": "lousy; atrocious; tedious",
    "invention": "loom|transform the textile trade;parachute|rescue aviators;barometer|forecast storms",
    "crime": "counterfeit banknotes; vandalize a kiosk; kidnap a heiress; launder cash",
    "officetask": "audit the ledgers; proofread the newsletter; reimburse the consultant; shred the memos",
}
HELDOUT_NAMES_SHE = "Beatrice; Tamara; Svetlana; Naomi; Gwen"
HELDOUT_NAMES_HE = "Oscar; Dmitri; Kwame; Rafael; Stefan"


def fields_of(slot):
    """Return the field list of a slot."""
    if slot in FIELDS:
        return FIELDS[slot]
    return "name+" if slot in PLURAL_SLOTS else "name*" if slot in VERB_SLOTS else "name"


def load(tables):
    """Turn compact tables into slots."""
    return {slot: table(fields_of(slot), " ".join(text.split())) for slot, text in tables.items()}


def add_people(slots, names_she, names_he, kin_she="", kin_he=""):
    """Add the slots whose entries carry pronouns: `name`, `kin` and their union `who`."""
    texts = [" ".join(text.split()) for text in (names_she, names_he, kin_she, kin_he)]
    slots["name"] = people(texts[0], SHE) + people(texts[1], HE)
    slots["kin"] = people(texts[2], SHE) + people(texts[3], HE)
    slots["who"] = slots["name"] + slots["kin"]
    return slots


TRAIN = add_people(load(TRAIN_TABLES), NAMES_SHE, NAMES_HE, KIN_SHE, KIN_HE)
HELDOUT = add_people(load(HELDOUT_TABLES), HELDOUT_NAMES_SHE, HELDOUT_NAMES_HE)
