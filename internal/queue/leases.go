package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// leases maintains the deliveries that continue after their claim has ended: it renews their leases
// and writes their answers, all that have arrived meanwhile in one transaction.
type leases struct {
	keeper  LeaseKeeper
	length  time.Duration
	log     *slog.Logger
	report  func(part string, err error) // of the database: nil if all is well
	retryIn func(time.Duration)          // called with the delay of every delivery to retry
	// standStill is called with +1 when the database refuses the answers, and with -1 when it has
	// accepted them: nothing may be claimed meanwhile.
	standStill func(int)
	tokens     *deliveries.Issuer
	fenced     atomic.Uint64
	granted    atomic.Uint64 // leases written
	renewed    atomic.Uint64
	lost       atomic.Uint64 // given up because a handler outlived its context
	taken      atomic.Uint64 // taken over from dead relays
	unrenewed  bool          // the last renewal has failed: the next one is made even of no lease, or it would be said for ever
	began      time.Time
	until      atomic.Int64  // in ns since began: until then all leases are certainly held; 0: unknown
	lapses     atomic.Uint64 // how often until passed before it was extended: older leases may have been taken over
	wake       chan struct{} // capacity 1: answers have arrived

	mu      sync.Mutex
	live    map[int64]*lease   // by token; to be renewed
	woken   map[*part]struct{} // parts with new answers
	results []lateResult
}

type lateResult struct {
	entry     deliveries.Entry
	delivered bool
}

func newLeases(keeper LeaseKeeper, length time.Duration, log *slog.Logger) *leases {
	ls := &leases{
		keeper: keeper, length: length, log: log, began: time.Now(),
		tokens: deliveries.NewIssuer(time.Now().UnixNano()), // above all tokens of an earlier process
		wake:   make(chan struct{}, 1), live: make(map[int64]*lease), woken: make(map[*part]struct{}),
	}
	return ls
}

// hold takes over the running deliveries of a claim after its settlement. After an error the rows
// are most likely free and will be claimed again. But if only the reply to COMMIT was lost, the
// leases exist. So the answers are written in either case, and fenced off where no lease exists.
func (ls *leases) hold(c *claim, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range c.parts {
		for _, l := range p.leased {
			if err == nil {
				ls.granted.Add(1)
				ls.live[l.entry.Token] = l
			}
		}
		p.held = true
		ls.wokenLocked(p)
	}
}

// answered records that a part of a claim has answers. It does not block.
func (ls *leases) answered(p *part) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.held { // else its claim collects them
		ls.wokenLocked(p)
	}
}

func (ls *leases) wokenLocked(p *part) {
	ls.woken[p] = struct{}{}
	select {
	case ls.wake <- struct{}{}:
	default:
	}
}

// take converts the answers into results.
func (ls *leases) take() []lateResult {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	results := ls.results
	ls.results = nil
	for p := range ls.woken {
		_, answers, _ := p.parcel.Take()
		for i := range answers {
			a := &answers[i]
			l := p.leased[a.Place]
			if l == nil {
				continue
			}
			delete(p.leased, a.Place)
			delete(ls.live, l.entry.Token)
			e := entryOf(&p.claim.work[p.works[a.Place]], p.lane.Destination().Name, a)
			e.Token = l.entry.Token
			results = append(results, lateResult{e, a.Verdict.Settles()})
		}
	}
	clear(ls.woken)
	return results
}

// run works until ctx ends; then it writes the remaining answers, within the given time.
func (ls *leases) run(ctx context.Context, last time.Duration) {
	ls.renewedAt(time.Now())
	renew := time.NewTicker(ls.length / 3)
	defer renew.Stop()
	w := newAnswerWriter(ls)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-renew.C:
			ls.renew(ctx)
		case <-w.retry.C:
			w.flush(ctx)
		case <-w.wake:
			w.flush(ctx)
		}
	}
	pause := reconnectPauses()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), last)
	defer cancel()
	err := ls.flush(ctx)
	for err != nil && store.IsDown(err) && ctx.Err() == nil {
		sleep(ctx, pause.NextBackOff()) // most connections can be replaced at once
		err = ls.flush(ctx)
	}
	if err != nil {
		ls.log.ErrorContext(ctx, "answers of leased deliveries could not be written, they will be delivered again", "err", err)
	}
}

// answerWriter writes the answers whenever there are any, and after an error again and again.
type answerWriter struct {
	ls     *leases
	wake   <-chan struct{} // nil until the next attempt is due
	retry  *time.Timer
	pauses store.Pauses
	still  bool // nothing is claimed, because answers are refused
}

func newAnswerWriter(ls *leases) *answerWriter {
	w := &answerWriter{ls: ls, wake: ls.wake, retry: time.NewTimer(0), pauses: store.NewPauses()}
	w.retry.Stop()
	return w
}

// flush writes all answers. Leases are renewed during the pauses after an error, so that nobody
// else delivers again what has been answered.
func (w *answerWriter) flush(ctx context.Context) {
	err := w.ls.flush(ctx)
	if err == nil {
		w.wake = w.ls.wake
		w.pauses.Reset()
	} else {
		w.wake = nil
		w.retry.Reset(w.pauses.After(err))
	}
	switch refused := err != nil && !store.IsDown(err); {
	case refused && !w.still:
		w.still = true
		w.ls.standStill(+1)
	case err == nil && w.still:
		w.still = false
		w.ls.standStill(-1)
	}
}

// maxFinish is how many answers one transaction writes: so many take tens of milliseconds. Without
// a bound, a transaction too large to finish in time would be repeated with even more answers, for
// ever.
const maxFinish = 1000

// flush writes all answers; after an error the rest is kept for the next call.
func (ls *leases) flush(ctx context.Context) error {
	results := ls.take()
	for len(results) > 0 {
		n := min(len(results), maxFinish)
		err := ls.finish(ctx, results[:n])
		ls.reportFrom(ctx, "answers of leases", err)
		if err != nil {
			ls.mu.Lock()
			ls.results = append(results, ls.results...)
			ls.mu.Unlock()
			return err
		}
		results = results[n:]
	}
	return nil
}

// finish writes some answers in one transaction.
func (ls *leases) finish(ctx context.Context, results []lateResult) error {
	var done, put []deliveries.Entry
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
	ls.tokens.End(slices.Concat(done, put)...)
	if fenced > 0 {
		ls.fenced.Add(uint64(fenced))
		ls.log.WarnContext(ctx, "answers were refused: their leases were taken over, lost in a crash of the database, or settled just before a connection was lost, or their events are missing", "deliveries", fenced)
	}
	for _, e := range put {
		if e.State == deliveries.Retry {
			ls.retryIn(e.Delay)
		}
	}
	return nil
}

func (ls *leases) renew(ctx context.Context) {
	ls.mu.Lock()
	tokens := make([]int64, 0, len(ls.live))
	now := time.Now()
	for token, l := range ls.live {
		if now.After(l.until) {
			ls.log.ErrorContext(ctx, "a handler ignores the end of its context; its lease is given up", "token", token)
			delete(ls.live, token)
			ls.tokens.End(l.entry)
			ls.lost.Add(1)
			continue
		}
		tokens = append(tokens, token)
	}
	for i := range ls.results { // answered, and not written yet
		tokens = append(tokens, ls.results[i].entry.Token)
	}
	ls.mu.Unlock()
	if len(tokens) > 0 || ls.unrenewed {
		err := ls.keeper.Renew(ctx, tokens)
		ls.reportFrom(ctx, "renewal of leases", err)
		if ls.unrenewed = err != nil; err != nil {
			return
		}
		ls.renewed.Add(uint64(len(tokens)))
	}
	ls.renewedAt(now)
}

// renewedAt records that all leases were extended at the given time, or later. If they had lapsed
// before, other relays may have taken some of them over.
func (ls *leases) renewedAt(now time.Time) {
	if !ls.sure(time.Now()) {
		ls.lapses.Add(1)
	}
	ls.until.Store(int64(now.Sub(ls.began) + ls.length - ls.length/leaseMargin))
}

// leaseMargin is the last part of a lease, as a fraction 1/leaseMargin of its length, in which no
// delivery is started any more: another relay may be about to take over.
const leaseMargin = 6

// sure reports whether all leases are certainly held for a while longer. They are not if the
// database was unavailable for most of a lease, or this process was frozen.
func (ls *leases) sure(now time.Time) bool {
	until := ls.until.Load()
	return until == 0 || int64(now.Sub(ls.began)) < until // by the monotonic clock
}

// reportFrom passes on whether the database answered. A call that the stopping relay cancelled says
// nothing about the database.
func (ls *leases) reportFrom(ctx context.Context, part string, err error) {
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		ls.report(part, err)
	}
}

func (ls *leases) stats() observe.LeaseStats {
	ls.mu.Lock()
	held := len(ls.live)
	ls.mu.Unlock()
	return observe.LeaseStats{Held: held, Granted: ls.granted.Load(), Renewed: ls.renewed.Load(), Lost: ls.lost.Load(), TakenOver: ls.taken.Load()}
}
