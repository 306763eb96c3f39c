package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// leases looks after the deliveries that go on after their claim has ended:
// it renews their leases and writes down their answers, all that have come in
// meanwhile in one transaction.
type leases struct {
	keeper  LeaseKeeper
	length  time.Duration
	log     *slog.Logger
	health  *health
	retryIn func(time.Duration) // told of every delivery that is due after a while
	moved   func()              // told when lines may go on
	tokens  tokens
	fenced  atomic.Uint64
	granted atomic.Uint64 // leases that were written
	renewed atomic.Uint64
	lost    atomic.Uint64 // given up, because a handler outlived its context
	taken   atomic.Uint64 // of relays that are gone
	began   time.Time
	until   atomic.Int64  // in ns since began: up to then all leases are held for sure; 0: nothing is known
	lapses  atomic.Uint64 // how often that had passed before it was moved: what was leased before may be with others
	wake    chan struct{} // capacity 1: results has something

	mu      sync.Mutex
	cond    sync.Cond       // answers have been written
	held    map[int64]lease // by token: written and not yet answered
	results []lateResult
}

// lease is a delivery whose lease is to be renewed until its handler has long
// outlived its timeout: then somebody else may have it.
type lease struct{ until time.Time }

type lateResult struct {
	entry     Entry
	delivered bool
	lane      *lane
	hold      *line // waits until this is written; nil where order does not matter
	job       *job
}

// written is told what became of the transaction that was to write leases.
// Jobs may have been answered before: their answers waited in the job.
func (ls *leases) written(jobs []*job, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, j := range jobs {
		switch {
		case err != nil && !j.leased: // see reclaim
			j.lease = leaseUnsure
			ls.tokens.end(j.token)
			j.wrote = true
			ls.cond.Broadcast()
		case err != nil:
			// Most likely the rows are free and will be claimed again. If the
			// commit was lost on its way back, the leases exist: so the answers
			// are written all the same, and fenced off where they do not.
			j.lease = leaseUnsure
			if j.lateOut != nil {
				ls.addLocked(j)
			}
		case j.lateOut != nil:
			ls.granted.Add(1)
			ls.addLocked(j)
		default:
			j.lease = leaseHeld
			ls.granted.Add(1)
			ls.held[j.token] = lease{time.Now().Add(j.lane.cfg.Timeout*time.Duration(1+j.ahead) + ls.length)}
		}
	}
}

// reclaim takes back leases that could not be written: those deliveries that
// have been answered meanwhile are answers of their claim again.
func (ls *leases) reclaim(jobs []*job) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, j := range jobs {
		if j.lateOut == nil {
			continue
		}
		j.batch.mu.Lock()
		j.out, j.answered, j.leased = *j.lateOut, true, false
		j.batch.mu.Unlock()
		if j.hold != nil {
			j.lane.written([]*line{j.hold})
			j.hold = nil
		}
	}
}

// answered takes the answer of a leased job.
func (ls *leases) answered(j *job, out outcome) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	j.lateOut = &out
	switch j.lease {
	case leaseHeld, leaseUnsure:
		delete(ls.held, j.token)
		ls.addLocked(j)
	case leaseUnknown: // the transaction that writes the lease is still under way
	}
}

func (ls *leases) addLocked(j *job) {
	j.batch.mu.Lock()
	j.out, j.answered = *j.lateOut, true
	entry := entryOf(j)
	j.batch.mu.Unlock()
	ls.results = append(ls.results, lateResult{entry, j.out.verdict == delivered, j.lane, j.hold, j})
	select {
	case ls.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends; then it writes what is left, within the given time.
func (ls *leases) run(ctx context.Context, last time.Duration) {
	ls.renewedAt(time.Now())
	renew := time.NewTicker(ls.length / 3)
	defer renew.Stop()
	pause := reconnectPauses()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-renew.C:
			ls.renew(ctx)
		case <-ls.wake:
			if err := ls.flush(ctx); err != nil {
				sleep(ctx, pause.NextBackOff())
				continue
			}
			pause.Reset()
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), last)
	defer cancel()
	err := ls.flush(ctx)
	for pause.Reset(); err != nil && ctx.Err() == nil; err = ls.flush(ctx) {
		sleep(ctx, pause.NextBackOff()) // most broken connections come back at once
	}
	if err != nil {
		ls.log.ErrorContext(ctx, "answers of leased deliveries could not be written, they will be delivered again", "err", err)
	}
}

// maxFinish is how many answers are written in one transaction: so many take
// tens of milliseconds. Without a bound, a transaction that is too large to be
// done in time would be tried again with even more, for ever.
const maxFinish = 1000

// flush writes all answers; after an error the rest is kept for the next time.
func (ls *leases) flush(ctx context.Context) error {
	ls.mu.Lock()
	results := ls.results
	ls.results = nil
	ls.mu.Unlock()
	for len(results) > 0 {
		n := min(len(results), maxFinish)
		err := ls.finish(ctx, results[:n])
		ls.report(ctx, err)
		if err != nil {
			ls.mu.Lock()
			ls.results = append(results, ls.results...)
			ls.mu.Unlock()
			select {
			case ls.wake <- struct{}{}:
			default:
			}
			return err
		}
		ls.wrote(results[:n])
		results = results[n:]
	}
	return nil
}

// finish writes some answers in one transaction.
func (ls *leases) finish(ctx context.Context, results []lateResult) error {
	var done, put []Entry
	for _, r := range results {
		if r.delivered {
			done = append(done, r.entry)
		} else {
			put = append(put, r.entry)
		}
	}
	fenced, err := ls.keeper.Finish(ctx, done, put)
	if err != nil {
		return err
	}
	ls.tokens.end(tokensOf(done, put)...)
	if fenced > 0 {
		ls.fenced.Add(uint64(fenced))
		ls.log.WarnContext(ctx, "answers were refused: their leases were taken over, lost in a crash of the database, or settled just before a connection was lost", "deliveries", fenced)
	}
	for _, e := range put {
		if e.State == EntryRetry {
			ls.retryIn(e.Delay)
		}
	}
	lines := make(map[*lane][]*line)
	for _, r := range results {
		if r.hold != nil {
			lines[r.lane] = append(lines[r.lane], r.hold)
		}
	}
	for l, held := range lines {
		if fenced > 0 {
			l.doubt(held)
		}
		l.written(held)
	}
	if len(lines) > 0 {
		ls.moved()
	}
	return nil
}

func (ls *leases) renew(ctx context.Context) {
	ls.mu.Lock()
	tokens := make([]int64, 0, len(ls.held))
	now := time.Now()
	for token, l := range ls.held {
		if now.After(l.until) {
			ls.log.ErrorContext(ctx, "a handler ignores the end of its context; its lease is given up", "token", token)
			delete(ls.held, token)
			ls.tokens.end(token)
			ls.lost.Add(1)
			continue
		}
		tokens = append(tokens, token)
	}
	ls.mu.Unlock()
	if len(tokens) > 0 {
		err := ls.keeper.Renew(ctx, tokens)
		ls.report(ctx, err)
		if err != nil {
			return
		}
		ls.renewed.Add(uint64(len(tokens)))
	}
	ls.renewedAt(now)
}

// renewedAt takes word that all leases were extended at the given time, or later. After
// too long a time that holds for those only that nobody has taken over by then.
func (ls *leases) renewedAt(now time.Time) {
	if !ls.sure(time.Now()) {
		ls.lapses.Add(1)
	}
	ls.until.Store(int64(now.Sub(ls.began) + ls.length - ls.length/leaseMargin))
}

// leaseMargin is the part of a lease, one of so many, before whose end nothing is
// begun with any more: by then whoever takes it over may have been told of it.
const leaseMargin = 6

// sure reports whether all leases are held for a while yet. They are not where the
// database was away for most of a lease, or this process frozen.
func (ls *leases) sure(now time.Time) bool {
	until := ls.until.Load()
	return until == 0 || int64(now.Sub(ls.began)) < until // by the clock that nobody sets
}

// report takes word of how the keeper fared. What was not even begun with,
// because the relay stops, says nothing about the database.
func (ls *leases) report(ctx context.Context, err error) {
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		ls.health.report(err)
	}
}
