package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/withheld"
	"github.com/notifyd/notifyd/observe"
)

// leases maintains the deliveries that outlive their claims: it renews their leases and writes their answers, all
// that have arrived in one transaction.
type leases struct {
	store   LeaseStore
	length  time.Duration
	log     *slog.Logger
	report  func(part string, err error) // err is the database's; nil is good
	retryIn func(time.Duration)          // called with the delay of each delivery to retry
	// pauseClaims is called with +1 when the database refuses the answers, and with -1 when it has accepted them.
	// Nothing may be claimed in between.
	pauseClaims func(int)
	// answerRow is called with an answer whose lease was refused.
	answerRow   func(l *lease, e deliveries.Entry, v dispatch.Verdict)
	tokens      *deliveries.Issuer
	fenced      atomic.Uint64
	written     atomic.Uint64 // leases that were written
	renewed     atomic.Uint64
	lost        atomic.Uint64 // handlers that outlived their contexts
	taken       atomic.Uint64 // taken over from dead relays
	renewFailed bool          // the last renewal failed: renew next time even without a lease, so that the report clears
	began       time.Time
	until       atomic.Int64  // in ns since began: all leases are certainly held until then; 0 for unknown
	lapses      atomic.Uint64 // how often until passed without a renewal: other relays may have taken older leases over
	wake        chan struct{} // capacity 1: answers have arrived

	// Answers that the database refuses alone, and when they are written again. Only run uses them.
	refused       []lateResult
	refusedUntil  time.Time
	refusedPauses backoff.Pauses
	alone         int // refusals since the last accepted answer

	mu             sync.Mutex
	live           map[int64]*lease    // by token; to be renewed
	answeredShares map[*share]struct{} // shares with new answers
	results        []lateResult
}

type lateResult struct {
	entry     deliveries.Entry
	delivered bool
	named     bool // it was refused, and logged
}

func newLeases(maintenance LeaseStore, length time.Duration, log *slog.Logger) *leases {
	ls := &leases{
		store: maintenance, length: length, log: log, began: time.Now(),
		tokens:        deliveries.NewIssuer(time.Now().UnixNano()), // above all tokens of an earlier process
		refusedPauses: withheld.Pauses(),
		wake:          make(chan struct{}, 1), live: make(map[int64]*lease), answeredShares: make(map[*share]struct{}),
	}
	return ls
}

// hold takes the running deliveries of a claim after its settlement. After an error the rows are most likely free,
// and will be claimed again. But if only the reply to COMMIT was lost, the leases exist. So the answers are written
// in either case, and fenced off if no lease exists.
func (ls *leases) hold(c *claim, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()

	for _, p := range c.shares {
		for _, l := range p.leased {
			if err == nil || l.row != nil {
				ls.live[l.entry.Token] = l
			}
			if err == nil && l.row == nil {
				ls.written.Add(1)
			}
		}
		p.toLeases = true
		ls.addAnsweredLocked(p)
	}
}

// answered records that a share has answers. It does not block.
func (ls *leases) answered(p *share) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.toLeases { // otherwise its claim collects them
		ls.addAnsweredLocked(p)
	}
}

func (ls *leases) addAnsweredLocked(p *share) {
	ls.answeredShares[p] = struct{}{}
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

	for p := range ls.answeredShares {
		_, answers, _ := p.batch.Take()
		for i := range answers {
			a := &answers[i]
			l := p.leased[a.Place]
			if l == nil {
				continue
			}
			delete(p.leased, a.Place)
			delete(ls.live, l.entry.Token)
			e := entryOf(&p.claim.work[p.works[a.Place]], p.lane.Destination(), a)

			if l.row != nil {
				ls.tokens.End(l.entry) // no row carries this token
				ls.answerRow(l, e, a.Verdict)
				continue
			}

			e.Token = l.entry.Token
			results = append(results, lateResult{entry: e, delivered: a.Verdict.Settles()})
		}
	}

	clear(ls.answeredShares)
	return results
}

// run works until ctx ends, then writes the remaining answers within the time last.
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

	pauses := backoff.Reconnects()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), last)
	defer cancel()

	err := ls.flush(ctx)
	for err != nil && store.IsDown(err) && ctx.Err() == nil {
		sleep.For(ctx, pauses.Next())
		err = ls.flush(ctx)
	}

	if err != nil {
		ls.log.ErrorContext(ctx, "results of leased deliveries not recorded", "err", err)
	}
}

// answerWriter writes the answers as they arrive, and retries after errors.
type answerWriter struct {
	ls     *leases
	wake   <-chan struct{} // nil until the next attempt is due
	retry  *time.Timer
	pauses store.Pauses
	paused bool // answers are refused, so no claims
}

func newAnswerWriter(ls *leases) *answerWriter {
	w := &answerWriter{ls: ls, wake: ls.wake, retry: time.NewTimer(0), pauses: store.NewPauses()}
	w.retry.Stop()
	return w
}

// flush writes all answers. Leases are renewed between retries, so that no other relay repeats the answered
// deliveries.
func (w *answerWriter) flush(ctx context.Context) {
	err := w.ls.flush(ctx)
	if err == nil {
		w.wake = w.ls.wake
		w.pauses.Reset()
		if len(w.ls.refused) > 0 {
			w.retry.Reset(time.Until(w.ls.refusedUntil))
		}
	} else {
		w.wake = nil
		w.retry.Reset(w.pauses.After(err))
	}

	switch refused := err != nil && !store.IsDown(err); {
	case refused && !w.paused:
		w.paused = true
		w.ls.pauseClaims(+1)
	case err == nil && w.paused:
		w.paused = false
		w.ls.pauseClaims(-1)
	}
}

// maxFinish bounds the answers that one transaction writes, in tens of milliseconds. Without a bound, a transaction
// too large to finish in time would be retried with even more answers, without end.
const maxFinish = 1000

// flush writes all answers. After an error it keeps the rest for the next call.
func (ls *leases) flush(ctx context.Context) error {
	results := append(ls.take(), ls.takeRefused()...)
	for len(results) > 0 {
		n := min(len(results), maxFinish)
		rest, err := ls.finish(ctx, results[:n])
		ls.reportFrom(ctx, "answers of leases", err)
		if err != nil {
			ls.mu.Lock()
			ls.results = slices.Concat(rest, results[n:], ls.results)
			ls.mu.Unlock()
			return err
		}
		results = results[n:]
	}
	return nil
}

// maxAlone is how many answers are refused, and none accepted, until the reason is taken for one of all answers.
const maxAlone = 16

// reportRefusedAnswers is the name of single refused answers in reports.
const reportRefusedAnswers = "answers of single leases"

// takeRefused takes the refused answers, if they are to be written again.
func (ls *leases) takeRefused() []lateResult {
	if len(ls.refused) == 0 || time.Now().Before(ls.refusedUntil) {
		return nil
	}
	results := ls.refused
	ls.refused = nil
	return results
}

// finish writes answers, in one transaction unless one of them is refused. The refused ones are kept for a later flush.
// After another error it returns the answers that are not written.
func (ls *leases) finish(ctx context.Context, results []lateResult) (rest []lateResult, err error) {
	written := make(map[int64]bool)
	refused, err := session.InHalves(results, func(some []lateResult) error {
		err := ls.finishTogether(ctx, some)
		for i := range some {
			written[some[i].entry.Token] = err == nil
		}
		return err
	})

	if len(refused) < len(results) {
		ls.alone = 0
	} else {
		ls.alone += len(refused)
	}
	if err == nil && ls.alone > maxAlone {
		err = refused[0].Err
	}

	if err == nil && len(ls.refused)+len(refused) > withheld.Max {
		err = fmt.Errorf("%w: %w", withheld.ErrTooMany, refused[0].Err)
	}
	if err != nil {
		return slices.DeleteFunc(slices.Clone(results), func(r lateResult) bool { return written[r.entry.Token] }), err
	}

	for _, r := range refused {
		if e := r.Item.entry; !r.Item.named {
			withheld.Log(ctx, ls.log, e.EventID, e.Destination, r.Err)
		}
		r.Item.named = true
		ls.refused = append(ls.refused, r.Item)
		ls.report(reportRefusedAnswers, &withheld.Error{Event: r.Item.entry.EventID, N: len(ls.refused), Err: r.Err})
	}

	switch {
	case len(refused) > 0:
		ls.refusedUntil = time.Now().Add(ls.refusedPauses.Next())
	case len(ls.refused) == 0:
		ls.refusedPauses.Reset()
		ls.report(reportRefusedAnswers, nil)
	}
	return nil, nil
}

// finishTogether writes answers in one transaction. It fences an answer off in four cases. Another relay took the lease
// over; a crash of the database lost the lease; the settlement was already written before a connection was lost; or the
// event is missing.
func (ls *leases) finishTogether(ctx context.Context, results []lateResult) error {
	var done, put []deliveries.Entry
	for _, r := range results {
		if r.delivered {
			done = append(done, r.entry)
		} else {
			put = append(put, r.entry)
		}
	}

	fenced, err := ls.store.Finish(ctx, done, put)
	if err != nil {
		return err
	}

	ls.tokens.End(slices.Concat(done, put)...)
	if fenced > 0 {
		ls.fenced.Add(uint64(fenced))
		ls.log.WarnContext(ctx, "results refused: leases expired", "deliveries", fenced)
	}

	for _, e := range put {
		if e.State == deliveries.Retry || e.ReportTo != "" {
			ls.retryIn(e.Delay)
		}
	}

	if slices.ContainsFunc(done, func(e deliveries.Entry) bool { return e.Report }) {
		ls.retryIn(0) // the next report of the row
	}
	return nil
}

func (ls *leases) renew(ctx context.Context) {
	ls.mu.Lock()
	tokens := make([]int64, 0, len(ls.live))
	now := time.Now()
	for token, l := range ls.live {
		if now.After(l.until) {
			ls.log.ErrorContext(ctx, "handler ignores the end of its context", "token", token)
			delete(ls.live, token)
			ls.tokens.End(l.entry)
			ls.lost.Add(1)
			if l.row != nil {
				again := l.entry
				again.State = deliveries.Retry
				again.Class = delivery.ClassRelay.String()
				again.Err = "the handler ignored the end of its context"
				ls.answerRow(l, again, dispatch.VerdictFailed)
			}
			continue
		}
		if l.row != nil {
			continue // the lease is not written
		}
		tokens = append(tokens, token)
	}

	for _, r := range slices.Concat(ls.results, ls.refused) { // answered and not written yet
		tokens = append(tokens, r.entry.Token)
	}
	ls.mu.Unlock()

	if len(tokens) > 0 || ls.renewFailed {
		refused, err := session.InHalves(tokens, func(some []int64) error { return ls.store.Renew(ctx, some) })
		if len(refused) > 0 {
			ls.reportFrom(ctx, "renewal of leases", refused[0].Err)
		} else {
			ls.reportFrom(ctx, "renewal of leases", err)
		}

		ls.renewFailed = err != nil || len(refused) > 0
		if err != nil {
			return
		}
		ls.renewed.Add(uint64(len(tokens)) - uint64(len(refused)))
	}

	ls.renewedAt(now)
}

// renewedAt records that all leases were extended at the given time or later. If they had lapsed before, other relays
// may have taken some of them over.
func (ls *leases) renewedAt(now time.Time) {
	if !ls.valid(time.Now()) {
		ls.lapses.Add(1)
	}
	ls.until.Store(int64(now.Sub(ls.began) + ls.length - ls.length/leaseMargin))
}

// leaseMargin is the last part of a lease, as a fraction 1/leaseMargin of its length, in which no delivery begins:
// another relay may be about to take over.
const leaseMargin = 6

// valid reports whether all leases are certainly held for a while longer. They are not if the database was
// unavailable for most of a lease, or this process was frozen.
func (ls *leases) valid(now time.Time) bool {
	until := ls.until.Load()
	return until == 0 || int64(now.Sub(ls.began)) < until // by the monotonic clock
}

// reportFrom records whether the database answered. A call that the stopping relay cancelled says nothing about the
// database.
func (ls *leases) reportFrom(ctx context.Context, part string, err error) {
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
		ls.report(part, err)
	}
}

func (ls *leases) stats() observe.LeaseStats {
	ls.mu.Lock()
	held := len(ls.live)
	ls.mu.Unlock()
	return observe.LeaseStats{Held: held, Granted: ls.written.Load(), Renewed: ls.renewed.Load(), Lost: ls.lost.Load(), TakenOver: ls.taken.Load()}
}
