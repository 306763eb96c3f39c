package notifyd

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// Health says whether the relay works: whether the database answers, and whether the relay hangs. A hang is also an
// incident, and a line in the log. Health never blocks and makes no query.
func (r *Relay) Health() observe.Health {
	return observe.Health{DatabaseDown: r.dispatcher.DatabaseDown(), DatabaseCure: r.dispatcher.DatabaseCure(), Hangs: r.audit.hangs()}
}

// watchdog runs the audit, and announces what it finds, until ctx ends.
func (r *Relay) watchdog(ctx context.Context) {
	seconds, audits := make(chan struct{}, 1), make(chan struct{}, 1)
	signal := func(to chan<- struct{}) {
		select {
		case to <- struct{}{}:
		default: // the one before is still under way
		}
	}
	var work sync.WaitGroup
	work.Go(func() {
		r.audit.count(ctx, r.settings.tick, func() {
			signal(seconds)
			if r.audit.now()%auditEvery == 0 {
				signal(audits)
			}
		})
	})
	work.Go(func() { announceHangs(ctx, r.audit, r.dispatcher, seconds, r.log) })
	work.Go(func() {
		for await(ctx, audits) {
			r.audit.run(ctx)
		}
	})
	work.Wait()
}

// await reports false if ctx ends before c is ready.
func await(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return ctx.Err() == nil
	}
}

// announceHangs logs and reports the beginning of a hang, and its end. An observer may be what hangs, so
// nothing waits for one, except the next report to it.
func announceHangs(ctx context.Context, a *audit, to delivery.Observer, seconds <-chan struct{}, log *slog.Logger) {
	told := make(chan struct{})
	close(told)
	known := make(map[string]bool)
	for await(ctx, seconds) {
		var news []delivery.Incident
		all := a.hangs()
		for _, h := range all {
			if known[h.Part] {
				continue
			}
			known[h.Part] = true
			log.ErrorContext(ctx, "the relay hangs", "part", h.Part, "reason", h.Reason, "restart_helps", h.Restart)
			news = append(news, delivery.Incident{Kind: delivery.IncidentHang, Time: time.Now(), Err: hangError(h.Reason)})
		}
		if len(all) == 0 && len(known) > 0 {
			clear(known)
			log.InfoContext(ctx, "nothing in the relay hangs any more")
			news = append(news, delivery.Incident{Kind: delivery.IncidentHangOver, Time: time.Now()})
		}
		if len(news) > 0 {
			before, done := told, make(chan struct{})
			told = done
			go func() {
				defer close(done)
				<-before
				for _, incident := range news {
					to.Observe(incident)
				}
			}()
		}
	}
}

// hangError is the reason of a hang as the error of an incident.
type hangError string

// Error implements error.
func (e hangError) Error() string { return string(e) }
