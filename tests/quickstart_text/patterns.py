"""Sentence patterns of the embedded text by topic, and those that are held out.

`{slot}` takes the default form of an entry and `{slot.form}` another form of the same entry;
`{slot2}` is a different entry of the same slot; `{a slot}` adds the indefinite article.
`[x|y|]` picks one alternative.  A leading "~" marks a plain statement which may be put into a
frame such as "It turns out that ...".  Patterns start in lower case; composing capitalizes.
"""

TRAIN_PATTERNS = {
    "cooking": """
~{who} is making {dish} with {dish.ingredients} for [dinner|lunch|the party|the whole family].
~{who} [always|usually|never|rarely] {cookstep.s} before the guests arrive.
first {cookstep}, then {cookstep2}, and finally [taste everything|clean the counter|turn off the stove].
chop the {vegetable.s}, add [some|a little] {herb}, and cook everything for {minutes} minutes.
how long should I cook the {meat} with the {vegetable.s}?
~this {dish} [needs|could use] [more|a bit of|a pinch of] {spice}.
do not forget the {spice}!
[we have run out of|there is no more|we still have plenty of] {spice} and {herb}.
~{who} burned the {meat} because {who.he} was [talking on the phone|watching a movie|looking for the salt].
the {dessert.s} have to cool for {minutes} minutes before you serve them.
would you like {drink} or {drink2} with your {dish}?
~{who} does not eat {meat}, so we made {dish} [instead|without it|for everyone].
serve the {meat} with {staple}, a few {vegetable.s}, and [plenty of|fresh|a sprinkle of] {herb}.
~my grandmother's recipe for {dessert.s} calls for {fruit.s} and {spice}.
[what a|such a] delicious {dessert}!
[pass me|please wash|put away|I need] the {utensil}.
where is the {utensil}?
~the {utensil} is too [small|big|hot|dirty] to [make|hold|serve] {dish}.
if you [have no|don't like|are allergic to] {herb}, use {herb2} in the {dish}.
to make {dish}, you need {dish.ingredients}, {a utensil}, and about {minutes} minutes.
~{dish} [tastes better than|is easier to cook than|takes longer than] {dish2}.
""",
    "groceries": """
~{who} bought {count} {fruit.s} and {count2} {vegetable.s} at the market {past_time}.
the {fruit.s} are [ripe|sour|too soft|very sweet|cheap this week].
how much [are|do you want for] the {vegetable.s}?
we need {vegetable.s}, {fruit.s}, {staple}, and {drink}.
~{fruit.s} are [sweeter|cheaper|juicier|harder to peel] than {fruit2.s}.
{a container} full of {fruit.s} [stands on the table|was left in the kitchen|fell off the truck].
I would rather have {a fruit} than {a dessert}.
~{who} [put|found|spilled] the {drink} in the {room}.
there are {count} {fruit.s} left in the {container}.
a plate of {staple} with {vegetable.s} and {meat} sits on [the table|a tray|a checkered tablecloth].
[no|too much|enough] {drink} for me, thanks.
""",
    "home": """
~{who} has to {chore} before {who.he} can [go out|watch television|go to bed].
could you please {chore} while I {chore2}?
~{who} {chore.past} and {chore2.past} {past_time}.
the {furniture} in the {room} is [old but comfortable|broken|covered with dust|a present from my aunt].
~we are [painting|cleaning|redecorating] the {room}, so the {furniture} is in the {room2}.
whose turn is it to {chore}?
I hate having to {chore}.
{who} moved the {furniture} from the {room} to the {room2}.
there is {a color} {furniture} next to the {furniture2} in the {room}.
the {room} [smells of paint|is freezing|looks tidy|needs new curtains].
~{a room} without {a furniture} feels [empty|strange|unfinished|cold].
[who left|you forgot|I can't find] the {container} in the {room}?
~{who} [would like|cannot afford|has just ordered] {a color} {furniture} for the {room}.
don't [leave your shoes|put the ladder|eat crackers] in the {room}!
you can use {a tool} to {tool.use}.
~{who} needs {a tool} to {tool.use}, but {who.he} cannot find one.
the {tool} is in the {room}, [behind|next to|under] the {furniture}.
after {who} had {tool.use_pp}, {who.he} put the {tool} back in the {container}.
""",
    "animals": """
~the {animal} lives in {animal.habitat} and eats {animal.food}.
~{animal.s} [mostly|mainly|usually] eat {animal.food}, while {animal2.s} prefer {animal2.food}.
a young {animal} {animal.action_past} while the [tourists|rangers|keepers|children] watched.
have you ever seen {a animal} {animal.action}?
~{animal.s} are [protected|rare|common|in danger] in [this region|many countries|parts of the south].
we watched {a animal} {animal.action} [for almost an hour|from a safe distance|through the fence].
[a lonely|an old|a tiny|a wounded] {animal} is looking for {animal.food}.
~{animal.s} can be found in {animal.habitat}, where they hunt or gather {animal.food}.
the {animal} [ran away|disappeared|did not move|came closer] when it [heard|smelled|saw] us.
look, {a animal}!
~unlike {animal.s}, {animal2.s} [cannot|do not] live in {animal.habitat}.
{count} {bird.s} are sitting on the [roof|fence|power line|chimney].
{a bird} [built its nest|sang all morning|was resting] in the {tree} [behind|near] our house.
{a color} {bird} [flies|glides|circles] over [the lake|the rooftops|a frozen pond|the harbor].
~{who} is afraid of {insect.s} but [loves|adores|dreams of] {animal.s}.
{insect.s} everywhere!
the {insect} [landed on|crawled over|flew past] my {bodypart}.
""",
    "pets": """
our {petact} likes to {petact.act} when nobody is home.
~{who}'s {petact} {petact.act_past} {past_time}.
the {petact} is {petact.act_ing} while the {pet} sleeps [in a basket|by the fire|under the bed].
why does your {petact} always {petact.act}?
a [black|brown|white|gray|spotted] {petact} {petact.act_s}.
~{who} has {count} {pet.s} and {a pet2} called {name}.
we took the {pet} to the vet because it [would not eat|was limping|had swallowed a button|kept sneezing].
~keeping {a pet} is [more work|cheaper|less noisy] than keeping {a pet2}.
where is the {pet}?
here comes the {pet}!
bad {petact}, do not {petact.act}!
I never thought {a petact} could {petact.act} [so fast|so quietly|so often|without waking us].
~the children want {a pet}, but their parents [say no|prefer {a pet2}|are allergic].
""",
    "family": """
~{who} and {name} have been [married|friends|neighbors] for {count} years.
{kin} is {count} years older than {name}.
~{kin} used to {hobby} when {kin.he} was young.
~{who} is the [youngest|oldest|tallest|quietest] of {count} children.
our family [meets|eats together|goes camping] {frequency}.
~{who} taught {name} how to {hobby}.
~{kin} and {name} had an argument about {quarrel}.
does {name} look more like {name.his} mother or {name.his} father?
~{name} was born in {month} {year}.
the baby [is crying|has a new tooth|fell asleep|smiled] again.
~{name} is {trait}, but {name.his} [brother|sister|twin] is {trait2}.
~{kin} [calls|visits|writes to] {name} {frequency}.
I miss {kin}.
{kin} has never forgiven {name} for what happened {past_time}.
~{name} and {name2} are getting [married|divorced] in {month}.
my [grandfather|great-aunt|stepfather|godmother] told us a long story about [the war|the old farm|a lost dog|life in {city}].
~{name} named {name.his} [son|daughter|dog|boat] after {kin}.
[everyone|nobody] in the family [expected|knew|believed] that {name} would move to {city}.
""",
    "children": """
the children are {childplay.ing} in the {room}.
~{name} was {childplay.ing} when {name.his} mother came home.
{count} kids {childplay.past} until it got dark.
can we {childplay} now?
~the little [boy|girl] wants {a toy} for [Christmas|a birthday present|the long car ride].
share your {toy} with {name}.
~{name} lost {name.his} favorite {toy} [at the park|on the bus|during the holidays|in {city}].
please don't {childplay} in the {room}, [it is late|we have guests|the floor is wet].
instead of sleeping, the twins {childplay.past} and {childplay2.past}.
who broke the {toy}?
a [small|happy|sleepy] child holds {a toy} and [smiles|points at a bird|looks out of the window].
~when I was a child, I loved to {childplay} and {childplay2}.
""",
    "captions": """
{a personkind} {outdoors.s} {scene}.
{a personkind} is {outdoors.ing} while {a personkind2} is {outdoors2.ing}.
{count} {personkind.s} are {outdoors.ing} {scene}.
{a personkind} wearing {a color} {clothing} {outdoors.s}.
{a personkind} in {a clothing} stands {scene}.
a group of {personkind.s} [poses|waits|sits|gathers] {scene}.
{a pet} runs past {a personkind} {scene}.
nobody is {outdoors.ing} {scene}.
{a color} {wheels} is parked {scene}.
{a personkind} and {a personkind2} are [talking|laughing|arguing] {scene}.
there is no {personkind} {scene}.
two {personkind.s} in {color} {clothing.s} {outdoors}.
{a personkind} looks at {a bird} {scene}.
a close-up of {a flower} and {a insect} [after the rain|in bright light|against a dark background].
an old {furniture} has been left {scene}.
{a personkind} with {a gift} in one hand {outdoors.s}.
{a color} {vessel} [floats on calm water|leaves the harbor|lies on the sand|passes under a bridge].
people [watch|film|ignore] {a personkind} who is {outdoors.ing}.
a black and white photo of {a building} and {a vehicle}.
several {personkind.s} [are no longer|have stopped] {outdoors.ing} because it started to rain.
""",
    "work": """
~the {job} at the {job.workplace} had to {job.task} [twice|again|before lunch|without any help].
~{who} works as {a job} in {city}.
~{job.s} [earn more|work longer hours|need more training] than {job2.s}.
the {job} is {job.task_ing} at the {job.workplace}.
~{name} wants to become {a job}, just like {name.his} [father|mother|aunt|uncle].
I need {a job}, not {a job2}.
~{who} has to {officetask} by {clock}.
did you {officetask} {past_time}?
let's {officetask} [first|tomorrow|together|after the break] and {officetask2} later.
the meeting about {meeting} [starts at {clock}|has been postponed|took two hours|was a waste of time].
~{who} {officetask.past}, {officetask2.past}, and went home at {clock}.
could somebody bring {a officething} to the [meeting room|front desk|second floor]?
~nobody at the office knows how to {officetask}.
our department has hired {count} new {job.s} this year.
~{name} got [promoted|fired|a raise|a new contract] {past_time}.
after {count} years as {a job}, {who} decided to {hobby} full time.
~{who} quit {who.his} job because the [pay was too low|boss was rude|commute was too long|work was dull].
[remind|ask|help] {name} to {officetask}.
a good {job} should be {virtue}, {virtue2}, and [always on time|willing to learn].
the {officething} is on {name}'s desk, under the {officething2}.
~working as {a job} taught {name} to be more {virtue}.
""",
    "school": """
~in {subject} class, we learned about {subject.topic} and had to {subject.task}.
~{name} is [good at|interested in|struggling with|tired of] {subject}.
which is harder, {subject} or {subject2}?
the {subject} teacher asked {name} to {subject.task}.
~{name} {studentact.past} {past_time}.
if you {studentact}, [the teacher will notice|your parents will hear about it|{name} will do the same].
the exam on {subject.topic} [was easier than expected|takes {minutes} minutes|has been moved to {day}].
~{percent} percent of the students failed the test about {subject.topic}.
the lecture on {subject.topic} was [clear|confusing|too short|packed].
can you explain {subject.topic} to me?
~{name} did not {studentact}, but {name2} did.
not every student [wants|has|dares] to {studentact}.
please {subject.task} before {day}[| and show me the result| or ask for help].
~{name} reads books about {subject.topic}, although {name.he} [studies|teaches] {subject2}.
I never liked {subject}.
the new school has [150|300|480|700|1,200] students and {count} {subject} teachers.
~{name} would rather {studentact} than {studentact2}.
""",
    "travel": """
~{who} is going to {country} [next summer|for {count} weeks|on business|with a friend] to learn {country.language}.
~the capital of {country} is {country.capital}.
in {country}, we ate {country.dish} [every day|on the first night|at a street stall|until we were full].
have you ever been to {country}?
~{name} lived in {country.capital} for {count} years but never learned {country.language}.
the {vehicle} to {city} leaves from the {vehicle.place} at {clock}.
how far is it from {city} to {city2}?
~we missed the [bus|train|ferry|flight|tram|last boat] to {city} because {excuse}.
~the flight from {city} to {city2} was [delayed|canceled|very bumpy|cheap].
is there a direct [train|bus|flight|ferry] to {city} on {day}?
~the {monument} in {monument.place} is a famous {monument.kind}.
we waited {minutes} minutes to see the {monument}, but it was [worth it|closed|too crowded].
~{city} is [more expensive|quieter|bigger|more exciting] than {city2} in {season}.
two tickets to {city}, please.
~{who} lost {who.his} [passport|suitcase|camera|wallet] in {city}.
don't forget your [passport|camera|sunglasses|dictionary] when you go to {country}.
~in {country} most people speak {country.language}, and visitors should try the {country.dish}.
our hotel in {country.capital} was {quality}, {quality2}, and close to {venue}.
~{who} took the {vehicle} instead of the {vehicle2} to save [time|money].
excuse me, where is {venue}?
turn [left|right] at {venue} and walk for {minutes} minutes until you see the {building}.
I have always wanted to see the {monument}.
~the [border|road|ferry line] between the two towns has been closed since {day}.
""",
    "weather": """
~because of {sky}, {sky.result}.
~it will be {weather} in {city} {future_time}.
what is the weather like in {city} in {month}?
~it was {degrees} degrees in the shade when we arrived in {city} {past_time}.
~{month} was [warmer|colder|wetter|drier] than {month2} this year.
take an umbrella, it looks {weather}.
the forecast for {day} mentions {sky}, followed by {count} {weather} days.
~after {sky}, it became {weather} again in {city}.
so {weather} today!
~the {season} in {country} is usually {weather}.
it is {degrees} degrees outside and {who} is wearing {a clothing}.
~{city} has not seen {sky} like this since {year}.
if it is {weather} on {day}, we will {hobby} at home.
~{who} hates {weather} days, but {name} enjoys them.
it isn't {weather} in {city}, is it?
~{sky} [is expected|was reported|is likely] [in the north|along the coast|near {city}] on {day}.
""",
    "health": """
~{who} has {ailment} and complains about {ailment.symptom}.
if you have {ailment}, you should {ailment.remedy}.
the doctor told {who} to {ailment.remedy} [for {count} days|until Friday|and rest].
~{who} hurt {who.his} {bodypart} while {exercise.ing}.
my {bodypart} hurts.
~{ailment} often [comes with|causes|begins with] {ailment.symptom}.
how can I get rid of {ailment}?
people who {habit} often have {habit.gain}.
try to {exercise} {often} and {habit}.
~{habit.ing} is good for you and leads to {habit.gain}.
~{who} can't {exercise} because of {ailment}.
~{name} started to {exercise} after {name.his} doctor warned {name.him} about [high blood pressure|diabetes|heart disease|weak bones].
take this medicine {count} times a day, [after meals|with water|before bed].
get well soon, {name}!
~{exercise.ing} is [healthier|more fun|harder on the {bodypart}|cheaper] than {exercise2.ing}.
the X-ray showed that {name}'s {bodypart} was [not broken|fractured|healing well].
~{big} people in {city} had to see a doctor because of {ailment} last year.
~{name} lost {count} pounds by {exercise.ing} {often}.
""",
    "money": """
~{who} paid {price} dollars for {purchase}.
~the {bill} went up by {percent} percent in {month}.
can you lend me {price} dollars until {day}?
~{who} cannot pay the {bill} this month.
to save money, {savings} and {savings2}.
~{name} saves money by {savings.ing}.
is {purchase} worth {price} dollars?
~{purchase} costs [twice|three times] as much as {purchase2}.
~{who} [sold|returned|regrets buying] {purchase} {past_time}.
the {bill} is due on {day}.
~instead of {purchase}, {who} bought {purchase2}.
I spent {price} dollars on {gift.s}.
~{name} owes {name2} {price} dollars, and {name2} wants it back by {day}.
too expensive!
~prices in {city} are {percent} percent higher than in {city2}.
you should {savings} before you think about {purchase}.
~{who} won {big} dollars in the lottery and bought {purchase}.
""",
    "shopping": """
~the {shop} on [Main Street|the corner|the square|Mill Road] sells {shop.goods}.
where can I buy {shop.goods}?
~{who} is looking for {a color} {clothing} in a [smaller|larger] size.
do you have this {clothing} in {color}?
~{name} gave {name2} {a gift} and {a gift2} for {name2.his} birthday.
the {clothing} [does not fit|is on sale|shrank in the wash|has a hole].
I'll take the {color} {clothing}.
~{who} went to the {shop} to get {shop.goods} but came back with {a gift}.
the {color} {clothing} is [nicer|cheaper|warmer] than the {color2} one.
~the {shop} closes at {clock} on {day}s.
this {gift} is a present for {kin}.
can I return this {gift} without a receipt?
~{name} wore {a color} {clothing} and {a color2} {clothing2} to the {event}.
~the new {shop} is {quality}, and customers [praise|complain about|love] its {shop.goods}.
the package with the {gift} [arrived|got lost|was stolen|is still on its way].
""",
    "sports": """
~the {sport.player} from {city} won the {sport} competition {past_time}.
{name} bought a new {sport.gear} for {sport}.
~{who} watches {sport} on television {frequency}.
~the home team [won|lost] by {count} points in front of {big} fans.
do you prefer {sport} or {sport2}?
~the young {sport.player} [slipped|cried|fainted|surprised everyone] in the final at the {sport.place}.
{city} beat {city2} after [extra time|a dramatic final minute|a long rain delay].
~{name} is not the [best|fastest|strongest] {sport.player}, but {name.he} never gives up.
the referee [stopped|canceled|interrupted] the {sport} match because of [bad light|smoke|an injury|a bomb threat|a power cut].
what a [goal|race|game|save]!
~the coach told the {sport.player} to {exercise} and {exercise2}.
~{name} injured {name.his} {bodypart} and will miss {count} games.
nobody expected the {sport.player} to finish in [second|third|fourth|fifth|last] place.
~{sport} is [less dangerous|more popular|more tiring] than {sport2}.
~in {year}, {a sport.player} from {country} set a new record.
the {sport.player} left {name}'s {sport.gear} at the {sport.place}.
come on, {city}!
""",
    "technology": """
my {device} {device.problem}, what should I do?
~if the {device} {device.problem}, {device.fix}.
~{who} bought a new {device} because the old one {device.problem}.
have you tried to {device.fix}?
~{who}'s {device} {device.problem} again.
the [new|latest|cheap] {device} is [faster|lighter|more reliable|harder to use] than my old {device2}.
~the app [crashes|asks for a password|sends too many messages] whenever {who} opens it.
how do I connect the {device} to the {device2}?
~the update for the {device} takes {minutes} minutes to install.
~{name} forgot the password for {name.his} {device}.
there is nothing wrong with the {device}.
~engineers in {country} have built {a device} that costs only {price} dollars.
turn off the {device}!
~a self-driving {wheels} was tested in {city} {past_time}.
the battery of the {device} lasts {count} hours, which is [enough|not enough|surprising].
never leave {a device} [in the sun|near water|unattended|on overnight].
""",
    "nature": """
~the {landscape} is known for {landscape.sight}.
we [hiked to|camped near|drove past] the {landscape} and saw {landscape.sight}.
~{tree.s} grow [faster|slower|taller] than {tree2.s}.
{a tree} and {count} {tree2.s} stand [behind the house|along the road|at the top of the hill].
~the {flower.s} bloom in {month}.
{gardening} [before the first frost|while the soil is moist|as soon as the rain stops|early in the morning].
~{who} {gardening.past} and {gardening2.past} {past_time}.
the {river} flows through {river.country}.
~the {river} is [longer than|not as long as|cleaner than] most rivers near {city}.
the {color} {flower.s} smell [wonderful|sweet|like honey].
~{insect.s} are [attracted to|often found on] {flower.s} and {tree.s}.
{who} planted {a tree} for [each|every] grandchild.
in {season}, the {landscape} with {landscape.sight} attracts {big} visitors.
a branch of the {tree} [broke off|fell onto the {wheels}|touched the water] during the {season} storm.
~the {grain} was [sold|damaged by hail|planted] in {year}.
watch the {bird.s}, they return to the {landscape} every {season}.
what is the name of this {flower}?
~the sun [rose|went down] behind the {building} in a [cloudless|pink|golden|stormy] sky [and the {bird.s} fell silent|].
""",
    "facts": """
~{science}.
did you know that {science}?
~the {invention} helped to {invention.effect}.
~before the {invention} was invented, it was hard to {invention.effect}.
~{planet} {planet.fact}.
we learned at school that {planet} {planet.fact} and that {science}.
~{material} is made from {material.source} and used for {material.use}.
what is {material} made of?
~in the {century} century, {people} {deed}.
~{people} {deed} and {deed2}.
~historians believe that {people} {deed} long before {people2}.
~the {building} was built in the {century} century and [destroyed|restored|sold] in {year}.
~in {year}, [a revolution|a peace treaty|a famine|a civil war|a royal wedding|a new constitution|a great fire] [changed|shaped|darkened] the history of {country}.
{material.use} are often made of {material}.
~{name} wrote an essay on how {people} {deed}.
~the [hotel|skyscraper|factory|department store|apartment block|hospital] in {city} has {count} floors and was finished in {year}.
who invented the {invention}?
~the old coin shows [an eagle|a queen|a ship|a crown] and dates from {year}.
~the {river} crosses {river.country}, a country whose people [value|depend on] it.
~{material} was [cheaper|rarer|more valuable] than {material2} in the {century} century.
""",
    "news": """
~{organization} has [approved|rejected|announced] {plan}.
~{organization} will vote on {plan} {future_time}.
~{big} people protested in {city} against {plan}.
~at least {count} people were [injured|killed|rescued] after {newsevent} near {city}.
{newsevent} in {country} [left {big} people without power|closed the main highway|forced families to leave their homes].
~the police arrested {count} men who had tried to {crime}.
~{a personkind} was [fined {price} dollars|sent to prison|questioned] after trying to {crime}.
~{organization} denied that {newsevent} was caused by [human error|old equipment|budget cuts].
~the mayor of {city} promised {plan} and {plan2}.
~unemployment in {country} [fell|rose] to {percent} percent in {month}.
~{organization} and {organization2} could not agree on {plan}.
~two suspects admitted that they wanted to {crime}, but nobody {crime2.past}.
~a spokesman for {organization} said that {plan} would cost {count} million dollars.
breaking news: {newsevent} near {city}.
~shares of the [airline|car maker|bank|oil company|phone company] [dropped|climbed] {percent} percent on {day}.
~voters in {city} do not want {plan}, according to a survey of {big} residents.
~{newsevent} [on|late on|early on] {day} delayed the opening of the {building}.
~the trial of {a job} accused of {crime.ing} begins on {day}.
""",
    "arts": """
~{who} plays the {instrument} in {a genre} band.
I prefer {genre} to {genre2}.
~the {instrument} is [harder to learn|louder|cheaper] than the {instrument2}.
~{name} is reading {book} about {book.about}.
~{book} about {book.about} became a bestseller in {country}.
have you seen the new {film} about {book.about}?
if you {craft} {craft.result} for {kin}, [you will make {kin.him} happy|use {color} paper to wrap it|start early].
~{who} {craft.past} {craft.result} for {kin}.
the {film} was {good}, but the ending was {bad}.
~the painting shows {a bird}, {a tree}, and {a personkind} in {a color} {clothing}.
~{name} sang {a genre} song while {name2} played the {instrument}.
who wrote this book?
~the exhibition of {color} paintings in {city} attracted {big} visitors.
listen to that {instrument}!
~the {genre} concert on {day} is sold out.
~{name} [could|couldn't] play the {instrument} when {name.he} was {count} years old.
{hobby.ing} is {a good} hobby.
~{who} likes to {hobby}, while {name} prefers to {hobby2}.
""",
    "reviews": """
the {dish} was {good}, but the service was {bad}.
the hotel was {quality} and {quality2}, and the staff was {good}.
{a bad} {film} with {a good} soundtrack.
I would not recommend this {device}, it {device.problem} after {count} weeks.
~the waiter brought {dish} instead of {dish2}, and the {drink} was warm.
[two|three|four] stars out of five for this {quality} restaurant near {venue}.
the {device} broke after {count} days, and the company [refused to help|sent a new one|never answered].
~the view from the [hotel|castle|guesthouse|mountain lodge] was {good}, although the rooms were {quality}.
simply {good}!
not {bad}, just {quality}.
if you like {genre}, you will find the music in this {film} {good}.
the {drink} was cold, the {staple} was dry, and the {dessert} was {bad}.
best {dessert} in {city}!
we will [never|definitely] come back for the {dish}.
~the book is {book}, and the part about {book.about} is {good}.
the {clothing} looks {good} online, but the {color} fabric feels {bad}.
{good} location, {bad} breakfast.
""",
    "opinions": """
I think that {plan} would be {a good} idea.
in my opinion, {city} is [far better|much worse] for {hobby.ing} than {city2}.
~{name} believes that {hobby.ing} is a waste of time.
everyone should learn to {hobby}.
I agree with {name}, the answer is not {plan}.
people who {hobby} are usually {trait}.
~it is [rude|silly|brave|childish] to {rudeact} in front of [strangers|children|your boss].
nothing is more [relaxing|fun|boring] than {hobby.ing}.
why would anyone want to {hobby}?
~{name} is too {trait} to admit {name.his} mistakes.
the older I get, the more I like {hobby.ing}.
I'm not against {plan}, but {plan2} should come first.
~{a trait} friend is better than {a trait2} one.
you are so {trait}.
I doubt that {organization} will ever pay for {plan}.
""",
    "feelings": """
~{who} is {feeling} because {feeling.cause}.
why are you so {feeling}?
~{who} felt {feeling} and {feeling2} at the same time.
I'm {feeling}.
~{who} was not {feeling}, only a little {feeling2}.
don't be [nervous|sad|angry|worried|scared|lonely|disappointed], {name} [will help you|is on your side|means well].
when {who} is {feeling}, {who.he} [goes for a walk|calls {kin}|eats chocolate|listens to {genre}].
~{name} {manner} opened the letter and became {feeling}.
{feeling} people [smile|talk|sleep] less than {feeling2} ones.
you look {feeling} today, {name}.
~hearing the {instrument} makes {who} {feeling}.
~{name} smiled {manner}, but {name.he} was {feeling} inside.
""",
    "plans": """
~{who} will {errand} {future_time}.
don't forget to {errand} and {errand2} on the way home.
can you {errand} for me {future_time}?
~{who} forgot to {errand} because {who.he} had to {errand2}.
I have to {errand} before {clock}.
let's meet at {venue} at {clock}.
~the {event} starts at {clock}, so we [should leave soon|still have time|need a taxi].
we need {event.need} for the {event}.
are you coming to the {event} on {day}?
~{who} was invited to {a event} in {city} but could not go.
I can't make it on {day}, how about {day2}?
~{name} organized the {event}, and {name2} brought {event.need}.
sorry I'm late, {excuse}.
I could not {errand} because {excuse}.
~the {event} was moved from {day} to {day2} because of {sky}.
who is bringing {event.need} to the {event}?
see you on {day}!
~if {name} does not {errand} {future_time}, {who2} will do it.
by the time we reached {venue}, the {event} had already [ended|begun].
""",
    "dialogue": """
"did you {errand}?" asked {name}, but {name2} [shook {name2.his} head|said nothing|only laughed].
"I would like {a dessert} and {drink}," said {name}.
{name} said that {name.he} had never {errand.pp} so late.
"where is my {gift}?" {name} asked {manner}.
"no, I don't {hobby}," {name} replied, "but {kin} does."
"please be quiet, the {job} is {job.task_ing}," whispered {name}.
thank you for the {gift}, {name}!
hello {name}, how was {city}?
yes, but {excuse}.
"{name} is {feeling}," said {kin}, "because {feeling.cause}."
what did {name} say about the {event}?
of course, {name}.
sorry, {name}, {excuse}.
tell {name} to {errand} and ask {name2} about the {event}.
could you say that again more {manner}?
is {name} there, or should I call {kin}?
good luck with the {event}!
I told {name} {manner} that {excuse}.
oh no, {excuse}!
""",
    "advice": """
if you want {habit.gain}, {habit} {often}.
to stay [healthy|fit|young|in shape], {habit}, {habit2}, and {exercise} {often}.
never {crime}, even if [your friends do it|nobody is watching|you need the cash].
use {a tool} when you want to {tool.use}.
the best way to learn {country.language} is to [live in {country}|watch films|practice {often}].
when you visit {venue}, leave your {container} [at the entrance|in the car|at home].
store {material.use} made of {material} [in a dry place|away from the heater|in a box].
if you feel [tired|stressed|lonely|bored|restless|anxious], {habit} or {hobby}.
write down what you need for the {event}: {event.need}, {drink}, and {dessert.s}.
you will never learn the {instrument} unless you practice {often}.
start with {subject.topic} if {subject} is new to you.
check the brakes of the {wheels} before you drive to {city} in {weather} weather.
""",
    "longer": """
~when {name} was a student in {city}, {name.he} worked as {a job} at night and learned {country.language} by watching films.
~although the [train|bus|plane|ferry|tram] was late and the weather was {weather}, {name} arrived at the {event} before {name2} did.
~the {job} explained to the {personkind.s} how to {tool.use} with {a tool}, but nobody listened until {name} asked a question.
~{name}, who grew up in {city} and later moved to {city2}, {hobby.s} {frequency} and never misses {a event}.
~after the {event}, {who} went home, {chore.past}, {chore2.past}, and fell asleep on the [sofa|floor|carpet|balcony] with the lights on.
if you happen to be in {city} in {month}, visit the [museum|bookshop|garden|bridge] near {venue} and try the {dish} at the little restaurant next to the {building}.
~my grandparents met in [1929|1936|1948|1952|1957|1961] at {venue} in {city}, when {country} was poor and hardly anyone owned a [refrigerator|car|telephone|television|camera].
~{organization} said on {day} that {newsevent} near {city} had damaged {count} {building.s} and that repairs would take at least {count2} months.
I was going to {errand}, but {excuse}, so I stayed at home and {chore.past} while {kin} {hobby.past}.
~the {animal}, which lives in {animal.habitat} and feeds on {animal.food}, has become rare since {year} because of hunting.
~what {name} liked most about {country} was the food, especially the {country.dish}, and the {trait} people {name.he} met in {country.capital}.
~neither {name} nor {name2} wanted to {chore}, so in the end {kin} had to do it alone after {clock}.
the more {name} {exercise.past}, the less {name.he} suffered from {ailment}, and by {month} {name.he} felt [strong|healthy|happy|young] again.
~{who} put the {gift} into {a container}, tied {a color} ribbon around it, and hid it in the {room} so that {name} would not find it before the {event}.
~while the {meat} was in the oven, {who} {cookstep.past}, poured the {drink}, and told us how {name} had lost a bet.
~{name} used to be {trait} and {trait2}, but ever since the {event} in {city} {name.he} has been surprisingly {virtue}.
in the photo, {a personkind} in {a color} {clothing} is {outdoors.ing}, and behind {a wheels} you can see {count} {bird.s} and {a tree}.
~scientists in {country} found that people who {habit} and {exercise} {often} live about {count} years longer.
~on the first day we visited {venue}, on the second day we [climbed a hill|rented bicycles|took a boat|got lost], and on the third day it was so {weather} that we stayed at the hotel.
~the {sport.player} trained {often} for {count} years, but {ailment} kept {name} from winning the {sport} final in {city}.
I bought this {device} for {price} dollars, it worked well for {count} weeks, and now it {device.problem}, so I want my money back.
~{people} {deed}, {deed2}, and, according to {a century} century writer, also {deed3}.
please {officetask}, {officetask2}, and let {name} know by {day} whether {organization} has agreed to {plan}.
~there were {count} {gift.s}, {a toy}, and an old {instrument} in the attic, but not the {container} that {who} was looking for.
~the {landscape} near {city} is worth a visit in {season} because of {landscape.sight}, but in {month} it is far too {weather}.
""",
    "videos": """
{a filmed} is {act.ing}.
{a filmed} {act.s} [slowly|again|very fast|without looking up|for the camera].
two {filmed.s} are {act.ing}.
{a filmed} is not {act.ing}, but {act2.ing}.
{a filmed} is {kitchenact.ing} in the [kitchen|garden|restaurant|studio].
someone {act.s} while {a filmed} {act2.s}.
the {filmed} stopped {act.ing} and started {act2.ing}.
{a filmed} [shows|teaches] {a filmed2} how to {act}.
a hand {kitchenact.s} with a sharp knife.
{a filmed} {kitchenact.s} on a [wooden board|white plate|marble counter].
the {filmed} is {kitchenact.ing} [for a salad|next to the stove|on television].
before {act.ing}, the {filmed} {act2.s}.
{a filmed} and {a filmed2} are {act.ing} together.
there is {a filmed} {act.ing} [near the camera|in the background|on a stage|behind a window].
{name} was filmed {act.ing} {past_time}.
""",
    "headlines": """
{city} mayor [resigns|apologizes|wins second term|under pressure] over {scandal}.
{count} [dead|hurt|missing] after {disaster} in {country}.
{country} and {country2} [sign|discuss|break off|resume talks on] {treaty}.
{firm} [cuts|creates|moves] {big} jobs in {country}.
profit at {firm} falls {percent} percent [on weak demand|after recall|because of high costs].
oil prices [rise|fall|steady] on [fears of war|weak demand|news from {country}].
{country} [bans|taxes|limits] {banned}.
police [hunt|arrest|release] {job} after [bank robbery|car chase|hotel fire] in {city}.
{disaster} [hits|threatens|spares] the coast of {country}.
{firm} profit up {percent} percent on [strong|higher|record] sales of its [phones|cars|drugs|games|shoes].
{name}, after {count} years in prison, [walks free|writes a memoir|will be tried again].
[thousands|hundreds|dozens] march in {city} over {scandal}.
~the government of {country} said on {day} that talks about {treaty} had [failed|succeeded|been postponed].
~{firm} plans to open {count} new branches in {country} by the end of {month}.
~the company said its {device} had sold {big} units, {percent} percent [more|fewer] than in the previous {season}.
~a court in {city} ruled that {firm} must pay {count} million dollars because of [unsafe products|false advertising|polluted soil|unpaid overtime|price fixing].
~shares in {firm} closed {percent} percent [higher|lower], while those of {firm2} were [unchanged|little changed].
~soldiers and rebels clashed near the border of {country}, and at least {count} civilians [fled|were wounded].
~{country}'s [president|prime minister|foreign minister|parliament] [rejected|welcomed|criticized] {treaty} on {day}.
~rescuers are still searching for {count} people after {disaster} struck {city}.
""",
    "forum": """
[can you|how do I|is it possible to] [remove|wash out] {stain} from {a clothing}?
what is the best way to {quest}?
is it [safe|legal|rude|normal] to {quest}?
~in my experience, you can {quest} if you [ask early|start small|have enough time|are patient].
you don't need {a job} to {quest}, just [follow the instructions|look online|ask a neighbor].
there is no [simple|single|right] answer to how to {quest}.
it depends on [your budget|the climate|your age|the country|how often you do it], but most people [manage to|never|prefer to] {quest}.
how [much|long] does it [cost|take] to {quest}?
I tried to {quest}, but it [didn't work|was too difficult|made things worse].
~{who} wants to know how to {quest} [without spending much|in one day|as a beginner].
to remove {stain}, rub it with [salt|lemon juice|vinegar|baking soda|soap] and wash it in [cold|warm] water.
do not try to {quest} before you have [read the manual|asked an expert|made a plan|saved some money].
has anyone here ever managed to {quest}?
the short answer is that you can {quest}, but it [takes time|costs a lot|needs practice].
yes, you can {quest}, but it is easier to {quest2}.
why is it so hard to {quest}?
""",
    "abstract": """
~{virtue_noun} is more important than {virtue_noun2}.
~without {virtue_noun}, there can be no {virtue_noun2}.
what does {virtue_noun} mean to you?
~{name} believes in {virtue_noun}, but {name.his} [party|family|company] does not.
~{people} valued {virtue_noun} above everything else.
{virtue_noun} cannot be bought.
~the [novel|play|poem|film|sermon] is about {virtue_noun} and {virtue_noun2}.
we owe our {virtue_noun} to those who [fought|worked|voted] for it.
the speech about {virtue_noun} [bored|moved|angered|surprised] the audience.
too much {virtue_noun} can be as bad as none at all.
~philosophers have argued about {virtue_noun} since the {century} century.
a little {virtue_noun} would [help|not hurt|change everything].
~children learn {virtue_noun} from [their parents|mistakes|stories|each other].
""",
    "community": """
~volunteers {volunteer.past} in {city} {past_time}.
~the {shop} on the corner was replaced by {a shop2}.
~{name} was elected [mayor|chairman|treasurer|president of the club] with [51|54|58|62|67|73|80] percent of the votes.
the neighbors [complained|called the police|wrote a letter] because {who} {noise.past} [at night|all weekend|on a Sunday].
~{big} people live in the village where {name} was born.
would you like to help us {volunteer} on {day}?
~the priest and the imam {volunteer.past} together.
~the army {volunteer.past} after {newsevent}.
~every {season}, the town celebrates its [harvest|founding|patron saint|victory] with {genre} and {drink}.
if you {noise} again, I will call the landlord.
~nobody volunteered to {volunteer}, so {name} did it alone.
please do not {noise} after {clock}.
~the club has {big} members, but only {count} of them {volunteer}.
""",
    "tiny": """
{name} is {trait}.
what {a trait} person!
{who} never {hobby.s}.
{hobby.ing} is fun.
stop {childplay.ing}!
{day} is fine.
see you at {clock}.
I saw {a animal}.
{who} loves {fruit.s}.
where are my {clothing.s}?
{name} wants {a fruit}.
my {bodypart} is swollen.
is {name} {feeling}?
nobody likes {vegetable.s}.
{color} or {color2}?
only {count} {dessert.s} left.
hurry up, {name}!
{a color} {clothing}, please.
{city} in {season}.
happy birthday, {name}!
watch out, {a insect}!
the {bird} is singing.
{who} speaks {country.language}.
we love {city}.
no more {dessert.s}, please.
{name} met {name2}.
{who} was {trait}.
pack your {clothing.s}.
almost {clock}.
{name} plays the {instrument}.
I need {a tool}.
my {device} {device.problem}.
the {flower.s} are {color}.
{who} isn't {feeling}.
{who} likes {genre}.
fresh {fruit.s} and {herb}.
what {weather} weather!
who ate my {dessert}?
your {clothing} looks {good}.
""",
}

# Beginnings for the statements marked "~".
FRAMES = """
apparently, {}
it turns out that {}
as far as I know, {}
I heard that {}
to be honest, {}
{name9} told me that {}
I'm not sure whether {}
it is true that {}
everybody knows that {}
the radio said that {}
I just found out that {}
{name9} doesn't believe that {}
my [doctor|hairdresser|landlord|cousin] claims that {}
surprisingly, {}
believe it or not, {}
the article says that {}
"""

HELDOUT_PATTERNS = {
    "cooking": """
stir in the {spice} as soon as the {vegetable.s} begin to brown.
the recipe serves {count} and keeps in the fridge until {day}.
anyone allergic to {fruit.s} must avoid this {dessert}.
""",
    "home": """
the movers dropped our {furniture} down the staircase.
rent for the apartment with the {color} {room} is {price} dollars per week.
""",
    "animals": """
rangers spotted {a animal} not far from the visitor center.
the vet weighed the {pet} and trimmed its claws.
a rescue shelter near {city} found homes for {count} {pet.s}.
""",
    "captions": """
silhouettes of {personkind.s} {outdoors.ing} at sunset.
{a personkind} leans against {a vehicle} and yawns.
onlookers applaud as {a personkind} begins to {outdoors}.
""",
    "work": """
applicants for the position of {job} must hold a valid license.
the union representing {job.s} rejected the latest pay offer.
""",
    "school": """
tutoring in {subject} is offered free of charge on {day}.
her thesis on {subject.topic} earned a distinction.
""",
    "travel": """
passengers bound for {city} should proceed to gate {count}.
a guidebook to {country} weighs less than the brochures from {city}.
jet lag ruined our first evening in {country.capital}.
""",
    "weather": """
meteorologists issued a warning about {sky} for the suburbs of {city}.
the barbecue was rained out, yet by {clock} it was {weather}.
""",
    "health": """
clinics in {city} report a spike in cases of {ailment}.
side effects may include {ailment.symptom} or mild fatigue.
""",
    "money": """
investors withdrew {big} dollars from the pension fund in {month}.
{who} haggled until {purchase} was {percent} percent cheaper.
""",
    "sports": """
commentators praised the {sport.player}'s composure under pressure.
season passes for {sport} go on sale in {month}.
""",
    "technology": """
hackers exploited a loophole in the {device}.
the warranty does not apply if the {device} {device.problem}.
""",
    "nature": """
erosion threatens the {landscape} and its wildlife.
botanists catalogued {count} species of {flower.s} on the slope.
""",
    "news": """
the opposition accused {organization} of stalling {plan}.
eyewitnesses described {newsevent} as a scene from a nightmare.
a jury acquitted the {job} charged with {crime.ing}.
""",
    "arts": """
critics hailed the {instrument} solo as hypnotic.
the sequel to {book} flopped at the box office.
""",
    "family": """
{name}'s godfather eloped with {a job} from {city}.
{name} adopted a toddler and relocated to {city}.
""",
    "opinions": """
frankly, I consider {plan} a gimmick.
""",
    "dialogue": """
whatever, {name}, suit yourself.
congratulations on the {event}, {name}!
""",
}

# Each line holds different wordings of one meaning, parted by " / ", which share their slots.
HELDOUT_PARAPHRASES = """
{who} postponed the {event} until {day}. / {who} put the {event} off until {day}.
{name} purchased {purchase} from {name2}. / {name2} sold {purchase} to {name}.
due to {sky}, classes were called off in {city}. / schools in {city} canceled lessons on account of {sky}.
{name} is taller than {name2} by an inch. / {name2} is an inch shorter than {name}.
{a personkind} who wears {a clothing} is {outdoors.ing}. / wearing {a clothing}, {a personkind} {outdoors.s}.
the {vehicle} headed for {city} departed at {clock}. / at {clock}, the {vehicle} bound for {city} set off.
{name} can't stand {genre}. / {name} dislikes {genre} intensely.
{organization} scrapped {plan}. / the idea of {plan} was abandoned by {organization}.
{newsevent} claimed {count} lives outside {city}. / {count} people died in {newsevent} outside {city}.
{name} majored in {subject}. / {subject} was {name}'s main field at college.
the {job} is reluctant to {job.task}. / the {job} does not really want to {job.task}.
my {device} is acting up: it {device.problem}. / there is trouble with my {device}, since it {device.problem}.
{name} is fond of {dish} with {drink}. / {dish} with {drink} is a favorite of {name}'s.
roughly {big} spectators turned up for the {sport} final. / the {sport} final drew a crowd of about {big}.
{who} recovered from {ailment} within {count} days. / it took {who} {count} days to get over {ailment}.
{name} surprised {name2} with {a gift}. / {a gift} from {name} came as a surprise to {name2}.
hardly anyone in {city} cycles when it is {weather}. / few residents of {city} ride bikes when it is {weather}.
could you direct me to {venue}? / can you show me the way to {venue}?
the {petact} refuses to {petact.act}. / the {petact} won't {petact.act}.
{name} {errand.past} all alone. / {name} {errand.past} without anybody's assistance.
a fleet of {vessel.s} drifted toward {city}. / toward {city} drifted a great many {vessel.s}.
{who} supervises {count} {job.s} at the {job.workplace}. / {count} {job.s} at the {job.workplace} report to {who}.
our flat overlooks {a grain} and {a landscape}. / from our flat you have a view of {a grain} and {a landscape}.
{name} regards {name2} as {trait}. / {name2} is {trait} in the eyes of {name}.
"""
