// A sample text with three clear parts, longer than one block, so that LLN is used.

export const SAMPLE = `The keeper's year

A lighthouse is a simple machine with one duty, which is to be seen. The keeper who tended it lived by that duty. In winter the lamp was lit before four in the afternoon and burned until eight the next morning, and in every one of those sixteen hours someone was awake beside it. The oil had to be carried up one hundred and forty steps, the wick trimmed, the glass wiped free of soot and salt. When the frost came the oil thickened and had to be warmed on the kitchen stove before it would climb the wick. The keeper wrote it all down: the hour of lighting, the hour of putting out, the weather, the ships that passed and, on most days, the words "nothing to report".

In summer the nights were short and the work was paint. Salt eats iron, and wind carries sand into every joint. The gallery rail was scraped and painted each May, the tower whitewashed each June, and by August the rust was back. A keeper of forty years reckoned that he had painted the same rail until the paint was thicker than the iron.

How the light is made to reach

A flame sends its light in all directions, and nearly all of it is lost on the sky and on the ground. The early remedy was a mirror behind the lamp, but polished metal swallows half of what falls on it and tarnishes within weeks in sea air. The better remedy was glass. A large lens would gather the light, yet a lens large enough would be so thick in the middle that it would weigh several tonnes and absorb what it was meant to send out.

Augustin Fresnel's answer, in 1822, was to keep the curved surface and throw away the glass behind it. He cut the lens into rings, each with the slope that the thick lens would have had at that place, and set them in a brass frame like the panes of a window. Above and below the rings he put prisms that bend the light twice, by refraction on entering and by total reflection inside. Such a lens, taller than a man, sends out more than four fifths of the light of its lamp as a flat beam that can be seen at twenty nautical miles, where the curve of the earth hides the tower itself.

A beam that turns can also say where it is. If the lens floats in a trough of mercury, a child can turn its three tonnes with one finger, and a clockwork with a falling weight can turn it all night. One light flashes every five seconds, its neighbour twice every fifteen, and the navigator with a watch and a list of lights knows which headland lies ahead. The pattern is called the character of the light.

What replaced the keeper

The first thing to go was the oil. Electric lamps needed no trimming, and a sensor could light them at dusk. Then the clockwork went, since a motor never asks to be wound. By the end of the twentieth century a cable, a spare bulb on a rotating arm and a telephone line did the work of three families, and the last keepers locked their doors behind them.

The lights themselves are dimmer today. Ships find their way by satellites, whose clocks agree to within billionths of a second, and a receiver in a pocket gives a position to a few metres. Pilots still ask for the lights to be kept, for a reason that keepers would have understood. A satellite signal is faint and can be jammed or forged by anyone with a small transmitter. A light on a rock cannot be moved from afar. When the screen and the lantern disagree, the careful navigator believes the lantern.

So the towers stay. They are painted now by contractors who come by helicopter, and the log that once said "nothing to report" is a line of numbers sent ashore each hour: voltage, temperature, the state of the lamp. Nobody is awake beside it. Most nights there is still nothing to report.
`;
