// Asks a gateway for audio and images with OpenAI's Node client, and says what came.
//
// Standard input is JSON: {origin, key, model, sound, picture} (the last two in base64); standard output is one
// JSON object.
import OpenAI, { toFile } from 'openai';

let told = '';
for await (const piece of process.stdin) told += piece;
const { origin, key, model, sound, picture } = JSON.parse(told);
const client = new OpenAI({ baseURL: `${origin}/v1`, apiKey: key, maxRetries: 0 });
const makeSound = () => toFile(Buffer.from(sound, 'base64'), 'tön.wav', { type: 'audio/wav' });
const makePicture = () => toFile(Buffer.from(picture, 'base64'), 'a.png', { type: 'image/png' });

const said = {};
said.heard = (await client.audio.transcriptions.create({ model, file: await makeSound() })).text;
said.subtitles = await client.audio.transcriptions.create({
  model,
  file: await makeSound(),
  response_format: 'srt',
});
said.events = [];
for await (const event of await client.audio.transcriptions.create({
  model,
  file: await makeSound(),
  stream: true,
})) {
  said.events.push(event.type);
}
said.translated = (await client.audio.translations.create({ model, file: await makeSound() })).text;
const speech = await client.audio.speech.create({ model, voice: 'alloy', input: 'Hello' });
said.spoken = Buffer.from(await speech.arrayBuffer()).toString('base64');
said.drawn = (await client.images.generate({ model, prompt: 'x', n: 2 })).data.length;
said.edited = (await client.images.edit({ model, prompt: 'x', image: [await makePicture()] })).data.length;
said.varied = (await client.images.createVariation({ model, image: await makePicture() })).data.length;
said.pictures = [];
for await (const event of await client.images.generate({ model, prompt: 'x', stream: true })) {
  said.pictures.push(event.type);
}
try {
  await client.audio.transcriptions.create({ model: 'nothing', file: await makeSound() });
} catch (error) {
  said.error = [error.constructor.name, error.status];
}
process.stdout.write(JSON.stringify(said));
