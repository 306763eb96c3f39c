// What the workers share: they tell the bench on standard output which jobs their handler was
// called for, and end when standard input does.

import { createInterface } from 'node:readline'

// reporter returns a function for handlers to call with the number of a job. With times,
// each call becomes a line "e NUMBER MICROSECONDS" of the clock on the wall; without, calls are
// only counted, "n COUNT", which costs a drain next to nothing. Lines go out together at the
// end of a turn of the event loop.
export function reporter (times) {
  let lines = ''
  let count = 0
  let due = false
  const flush = () => {
    due = false
    process.stdout.write(times ? lines : `n ${count}\n`)
    lines = ''
    count = 0
  }
  return (seq) => {
    if (times) {
      lines += `e ${seq} ${Math.round((performance.timeOrigin + performance.now()) * 1000)}\n`
    } else {
      count++
    }
    if (!due) {
      due = true
      setImmediate(flush)
    }
  }
}

// serve waits for the line "start", so that loading the program is not measured, calls start,
// says "ready", and calls what start returned when standard input ends: the bench closes it, or
// is gone.
export async function serve (start) {
  process.stdout.write('loaded\n')
  const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  if ((await input.next()).done) return
  const stop = await start()
  process.stdout.write('ready\n')
  await input.next()
  await stop()
}
