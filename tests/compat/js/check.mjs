// Prints what the official client makes of a server's answers, as one JSON object.
import OpenAI from 'openai'

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 })
const hello = [{ role: 'user', content: 'Say hello.' }]
const chat = (fields) =>
  client.chat.completions.create({
    model: 'any',
    messages: hello,
    temperature: 0,
    max_tokens: 8,
    ...fields
  })

async function refusal(fields) {
  try {
    await chat(fields)
    return null
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param }
  }
}

const found = {}
found.whole = (await chat({})).choices[0].message.content

found.streamed = ''
for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
  found.streamed += chunk.choices[0]?.delta?.content ?? ''
  found.usage = chunk.usage
}

const helper = client.chat.completions.stream({
  model: 'any',
  messages: hello,
  temperature: 0,
  max_tokens: 8
})
found.helper = await helper.finalContent()

const schema = {
  type: 'object',
  properties: { size: { enum: ['small', 'large'] } },
  required: ['size'],
  additionalProperties: false
}
const form = { type: 'json_schema', json_schema: { name: 'order', strict: true, schema } }
const parsed = await client.chat.completions.parse({
  model: 'any',
  messages: hello,
  temperature: 1,
  max_tokens: 60,
  response_format: form
})
found.parsed = JSON.parse(parsed.choices[0].message.content)
const object = await chat({ response_format: { type: 'json_object' } })
found.object = object.choices[0].message.content.trimStart()[0]

found.range = await refusal({ temperature: 3 })
found.unsupported = await refusal({ n: 2 })
found.tooLarge = await refusal({ user: 'x'.repeat(33 * 2 ** 20) })
found.streamRefused = await refusal({ temperature: 3, stream: true })

const running = []
for (let i = 0; i < Number(process.argv[3]); i++) {
  const stream = await chat({ stream: true, max_tokens: 900, ignore_eos: true })
  const events = stream[Symbol.asyncIterator]()
  await events.next()
  running.push(stream)
}
const places = Array(Number(process.argv[4])).fill('a')
const complete = () => client.completions.create({ model: 'any', prompt: places, max_tokens: 1 })
try {
  await complete()
} catch (error) {
  found.full = { name: error.constructor.name, status: error.status, code: error.code }
}
for (const stream of running) stream.controller.abort()
for (let attempt = 0; attempt < 100 && !found.free; attempt++) {
  try {
    found.free = (await complete()).choices.length === places.length
  } catch {
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

found.models = (await client.models.list()).data.map((model) => model.id)
console.log(JSON.stringify(found))
