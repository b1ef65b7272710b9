// Drives a gateway with the official Node clients, and says what they made of the answers.
//
// Standard input is JSON: {origin, key, jobs: [{id, api, model, body, stream, then, key}]}; standard output is
// one JSON object, with what was said by the id of its job.  tests/gateway/client_cases.py does the same with
// the Python clients, and says what the fields mean.
import Anthropic, { APIError as AnthropicError } from '@anthropic-ai/sdk';
import OpenAI, { APIError as OpenAIError } from 'openai';

const AT_ONCE = 8;
const FINISH = { end_turn: 'stop', tool_use: 'tool_calls', completed: 'stop' };

function makeClients(origin, key) {
  return {
    gpt: new OpenAI({ baseURL: `${origin}/v1`, apiKey: key, maxRetries: 0 }),
    claude: new Anthropic({ baseURL: origin, apiKey: key, maxRetries: 0 }),
  };
}

async function chat({ gpt }, body, stream) {
  let thinking = '';
  let answer;
  if (stream) {
    const events = gpt.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
    events.on('chunk', (chunk) => {
      thinking += chunk.choices[0]?.delta?.reasoning_content ?? '';
    });
    answer = await events.finalChatCompletion();
  } else {
    answer = await gpt.chat.completions.create(body);
    thinking = answer.choices[0].message.reasoning_content ?? '';
  }
  const { message, finish_reason } = answer.choices[0];
  const calls = message.tool_calls ?? [];
  const said = {
    text: message.content ?? '',
    thinking,
    calls: calls.map((call) => [call.id, call.function.name, JSON.parse(call.function.arguments)]),
    finish: finish_reason,
    input: answer.usage.prompt_tokens,
    output: answer.usage.completion_tokens,
    cached: answer.usage.prompt_tokens_details?.cached_tokens,
  };
  const results = calls.map((call) => ({ role: 'tool', tool_call_id: call.id, content: '21 degrees' }));
  return [said, { ...body, messages: [...body.messages, message, ...results] }];
}

async function messages({ claude }, body, stream) {
  const answer = stream ? await claude.messages.stream(body).finalMessage() : await claude.messages.create(body);
  const blocks = (type) => answer.content.filter((block) => block.type === type);
  const said = {
    text: blocks('text').map((block) => block.text).join(''),
    thinking: blocks('thinking').map((block) => block.thinking).join(''),
    calls: blocks('tool_use').map((block) => [block.id, block.name, block.input]),
    finish: FINISH[answer.stop_reason] ?? answer.stop_reason,
    input: answer.usage.input_tokens + (answer.usage.cache_read_input_tokens ?? 0),
    output: answer.usage.output_tokens,
    cached: answer.usage.cache_read_input_tokens,
  };
  const results = blocks('tool_use').map((block) => ({
    type: 'tool_result',
    tool_use_id: block.id,
    content: '21 degrees',
  }));
  const turn = [{ role: 'assistant', content: answer.content }, { role: 'user', content: results }];
  return [said, { ...body, messages: [...body.messages, ...turn] }];
}

async function responses({ gpt }, body, stream) {
  const answer = stream ? await gpt.responses.stream(body).finalResponse() : await gpt.responses.create(body);
  const items = (type) => answer.output.filter((item) => item.type === type);
  const thoughts = items('reasoning').flatMap((item) => [...(item.content ?? []), ...(item.summary ?? [])]);
  const calls = items('function_call');
  const said = {
    text: answer.output_text,
    thinking: thoughts.map((part) => part.text).join(''),
    calls: calls.map((item) => [item.call_id, item.name, JSON.parse(item.arguments)]),
    finish: calls.length ? 'tool_calls' : (FINISH[answer.status] ?? answer.status),
    input: answer.usage.input_tokens,
    output: answer.usage.output_tokens,
    cached: answer.usage.input_tokens_details.cached_tokens,
  };
  const results = calls.map((item) => ({
    type: 'function_call_output',
    call_id: item.call_id,
    output: '21 degrees',
  }));
  return [said, { ...body, input: [...body.input, ...answer.output, ...results] }];
}

async function embeddings({ gpt }, body) {
  const answer = await gpt.embeddings.create(body);
  return [{ vectors: answer.data.map((each) => each.embedding.length), input: answer.usage.prompt_tokens }];
}

async function countTokens({ claude }, body) {
  return [{ input: (await claude.messages.countTokens(body)).input_tokens }];
}

const APIS = { chat, messages, responses, embeddings, count_tokens: countTokens };

async function run(job, clients) {
  const ask = APIS[job.api];
  try {
    const [said, next] = await ask(clients, { ...job.body, model: job.model }, job.stream);
    if (job.then) said.then = (await ask(clients, next, job.stream))[0].text;
    return said;
  } catch (error) {
    if (!(error instanceof OpenAIError || error instanceof AnthropicError)) throw error;
    const told = error instanceof AnthropicError ? error.error?.error : error;
    return {
      error: error.constructor.name,
      status: error.status ?? null,
      type: told?.type ?? null,
      code: told?.code ?? null,
      message: error.message,
    };
  }
}

async function main() {
  let input = '';
  for await (const piece of process.stdin) input += piece;
  const { origin, key, jobs } = JSON.parse(input);
  const said = {};
  const waiting = [...jobs];
  async function work() {
    for (let job = waiting.shift(); job; job = waiting.shift()) {
      try {
        said[job.id] = await run(job, makeClients(origin, job.key ?? key));
      } catch (error) {
        said[job.id] = { broken: String(error?.stack ?? error) };
      }
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  process.stdout.write(JSON.stringify(said));
}

await main();
