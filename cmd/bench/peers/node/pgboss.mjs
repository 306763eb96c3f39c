// pg-boss: `pgboss.mjs migrate` makes its tables and queues, and prints the statements with which it
// sends and inserts jobs; `pgboss.mjs work` works. Settings come as JSON in PEER_SETTINGS, the
// database in DATABASE_URL.

import { PgBoss } from 'pg-boss'
import { reporter, serve } from './report.mjs'

const settings = JSON.parse(process.env.PEER_SETTINGS)
const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, ...settings.boss })
boss.on('error', (err) => process.stderr.write(`pg-boss: ${err.stack}\n`))

// statement returns what call has a transaction of the application execute: the db option of send()
// and insert() is the documented way to enqueue in one.
async function statement (call) {
  let found
  await call({ executeSql: async (text, values) => { found = { text, values }; return { rows: [{ id: 'none' }] } } })
  return found
}

if (process.argv[2] === 'migrate') {
  await boss.start()
  const statements = {}
  for (const [queue, options] of Object.entries(settings.queues)) {
    await boss.createQueue(queue, options)
    statements[queue] = {
      send: await statement((db) => boss.send(queue, settings.marker, { db })),
      insert: await statement((db) => boss.insert(queue, [{ data: settings.marker }], { db }))
    }
  }
  await boss.stop({ graceful: false })
  process.stdout.write(JSON.stringify(statements) + '\n')
} else {
  const handled = reporter(settings.times)
  await serve(async () => {
    await boss.start()
    await boss.work(settings.queue, settings.work, async (jobs) => {
      for (const job of jobs) handled(job.data.seq)
    })
    return () => boss.stop({ graceful: true })
  })
}
