// graphile-worker: `graphile.mjs migrate` makes its tables, `graphile.mjs work` works. Settings come
// as JSON in PEER_SETTINGS, the database in DATABASE_URL.

import { Logger, run, runMigrations } from 'graphile-worker'
import { reporter, serve } from './report.mjs'

const settings = JSON.parse(process.env.PEER_SETTINGS)
const quiet = new Logger(() => (level, message) => {
  if (level === 'error' || level === 'warning') process.stderr.write(`graphile-worker: ${message}\n`)
})
const preset = { worker: { connectionString: process.env.DATABASE_URL, logger: quiet, ...settings.worker } }

if (process.argv[2] === 'migrate') {
  await runMigrations({ preset })
} else {
  const handled = reporter(settings.times)
  await serve(async () => {
    const runner = await run({
      preset,
      noHandleSignals: true,
      crontab: '',
      taskList: { bench_event: async (payload) => { handled(payload.seq) } }
    })
    return () => runner.stop()
  })
}
