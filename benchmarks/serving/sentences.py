"""What is embedded: 32 different short sentences. Request k of a turn, of whatever system, has sentence k modulo 32."""

SENTENCES = (
    "A lease is a promise with an end.",
    "It rained all night.",
    "The train to the coast leaves at seven.",
    "Nobody answered the phone.",
    "She keeps her letters in a tin box.",
    "What time does the library close?",
    "Two cups of flour and a pinch of salt.",
    "The server came back after a minute.",
    "He could not find his keys this morning.",
    "Bring a coat, the evenings are cold.",
    "The committee will meet again on Thursday.",
    "A small dog slept under the table.",
    "Please send the invoice to the new address.",
    "The river rose by a metre in an hour.",
    "Our cat ignores every toy we buy.",
    "They painted the kitchen yellow.",
    "The second act was better than the first.",
    "How far is it to the next village?",
    "The battery lasts about ten hours.",
    "Snow had covered the tracks by noon.",
    "He plays the cello in a string quartet.",
    "The bakery opens before sunrise.",
    "Turn left after the old bridge.",
    "The results surprised everyone in the room.",
    "I will call you when the plane has landed.",
    "Plants on the window sill need water.",
    "The contract ends with the calendar year.",
    "A loud noise woke the children.",
    "You can pay by card or in cash.",
    "The museum is closed on Mondays.",
    "Her answer was short and clear.",
    "The lighthouse can be seen from here.",
)


def sentence(number: int) -> str:
    return SENTENCES[number % len(SENTENCES)]
