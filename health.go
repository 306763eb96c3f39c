package notifyd

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/observe"
)

// Health says whether the relay works: whether the database answers, and whether a part of the relay hangs. A hang is also an
// incident, and a line in the log. Health never blocks and makes no query.
func (r *Relay) Health() Health {
	return Health{DatabaseDown: r.dispatcher.DatabaseDown(), DatabaseCure: r.dispatcher.DatabaseCure(), Hangs: hangs(r.pulse)}
}

func hangs(pulse *engine.Watch) (all []observe.Hang) {
	for _, h := range pulse.Hangs() {
		all = append(all, observe.Hang{Part: h.Part, Reason: h.Reason, For: h.For, Restart: h.Restart, Lost: h.Lost()})
	}
	return all
}

// auditEvery is how often the relay looks for work that is due and not begun, where a destination has received
// nothing since the look before.
const auditEvery = engine.Patience / 2

// watchdog notices hangs until ctx ends.
func (r *Relay) watchdog(ctx context.Context) {
	looks, audits := make(chan struct{}, 1), make(chan struct{}, 1)
	signal := func(to chan<- struct{}) {
		select {
		case to <- struct{}{}:
		default: // the one before is still under way
		}
	}
	var work sync.WaitGroup
	work.Go(func() {
		r.pulse.Run(ctx, func() {
			signal(looks)
			if r.pulse.Now()%auditEvery == 0 {
				signal(audits)
			}
		})
	})
	work.Go(func() { announceHangs(ctx, r.pulse, r.dispatcher, looks, r.log) })
	work.Go(func() {
		a := newAudit(r)
		part := r.pulse.Part("audit", "the search for work that is due", engine.Patience)
		for await(ctx, audits) {
			part.Begin()
			r.pulse.Report(a.look(ctx))
			part.Rest()
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
func announceHangs(ctx context.Context, pulse *engine.Watch, to Observer, looks <-chan struct{}, log *slog.Logger) {
	told := make(chan struct{})
	close(told)
	known := make(map[string]bool)
	for await(ctx, looks) {
		var news []Incident
		all := hangs(pulse)
		for _, h := range all {
			if known[h.Part] {
				continue
			}
			known[h.Part] = true
			log.ErrorContext(ctx, "the relay hangs", "part", h.Part, "reason", h.Reason, "restart_helps", h.Restart)
			news = append(news, Incident{Kind: delivery.IncidentHang, Time: time.Now(), Err: hangError(h.Reason)})
		}
		if len(all) == 0 && len(known) > 0 {
			clear(known)
			log.InfoContext(ctx, "nothing in the relay hangs any more")
			news = append(news, Incident{Kind: delivery.IncidentHangOver, Time: time.Now()})
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
