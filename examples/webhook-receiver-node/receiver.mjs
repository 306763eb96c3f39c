// Receives the requests of notifyd's webhook destination, with nothing but Node 18 or
// newer. It shows the three duties of a receiver: check the signature and the time, drop
// duplicates, and answer 2xx only when the event is safe.
//
//   WEBHOOK_SECRET=whsec_... PORT=8080 node receiver.mjs
import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer } from 'node:http'

const tolerance = 5 * 60 // seconds
const maxBody = 1 << 20
const maxSeen = 10_000

// One secret, or during a rotation two with a blank between them.
const keys = (process.env.WEBHOOK_SECRET ?? '').split(/\s+/).filter(Boolean).map((secret) => {
  if (!/^whsec_[A-Za-z0-9+/]+=*$/.test(secret)) throw new Error('WEBHOOK_SECRET must be whsec_ and base64')
  return Buffer.from(secret.slice('whsec_'.length), 'base64')
})
if (keys.length === 0) throw new Error('set WEBHOOK_SECRET')

// verify reports whether one of the keys has signed these bytes within the last five minutes.
function verify (headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': stamp, 'webhook-signature': signatures } = headers
  if (!id || !/^\d+$/.test(stamp ?? '') || !signatures) return false
  if (Math.abs(Date.now() / 1000 - Number(stamp)) > tolerance) return false
  return keys.some((key) => {
    const want = createHmac('sha256', key).update(`${id}.${stamp}.`).update(body).digest()
    return signatures.split(' ').some((one) => {
      const [version, encoded] = one.split(',')
      const got = Buffer.from(encoded ?? '', 'base64')
      return version === 'v1' && got.length === want.length && timingSafeEqual(got, want)
    })
  })
}

// In production, insert webhook-id into a table with a unique index, in the
// transaction that does the work: then a crash between the two cannot happen.
const seen = new Map() // true when it was handled

async function handle (id, type, payload) {
  console.log(JSON.stringify({ id, type, payload }))
}

const server = createServer(async (req, res) => {
  const answer = (status) => res.writeHead(status).end()
  try {
    const chunks = []
    let size = 0
    for await (const chunk of req) {
      size += chunk.length
      if (size > maxBody) return answer(413)
      chunks.push(chunk)
    }
    // The signature is over these bytes: check it before anything parses them.
    const body = Buffer.concat(chunks)
    if (!verify(req.headers, body)) return answer(401)
    const id = req.headers['webhook-id']
    if (seen.get(id)) return answer(204) // delivered before; the answer was lost
    if (seen.has(id)) {
      // Another request is handling it, and its outcome is unknown yet.
      return res.writeHead(409, { 'Retry-After': '1' }).end()
    }
    seen.set(id, false)
    try {
      await handle(id, req.headers['notifyd-type'], JSON.parse(body))
    } catch (err) {
      seen.delete(id) // notifyd tries again
      throw err
    }
    seen.set(id, true)
    if (seen.size > maxSeen) seen.delete(seen.keys().next().value)
    answer(204)
  } catch (err) {
    console.error(err)
    if (!res.headersSent) answer(503)
  }
})
server.listen(Number(process.env.PORT ?? 8080), '127.0.0.1', () => {
  console.log(JSON.stringify({ listening: server.address().port }))
})
process.on('SIGTERM', () => server.close(() => process.exit(0)))
