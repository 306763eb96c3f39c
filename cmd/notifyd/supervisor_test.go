package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
	"github.com/notifyd/notifyd/internal/systemd"
	"github.com/notifyd/notifyd/internal/testenv"
)

// hung is a handler that does not heed its context. It returns when it is released.
type hung struct {
	called   chan struct{}
	released chan struct{}
}

func (h *hung) Deliver(context.Context, *delivery.Event) error {
	h.called <- struct{}{}
	<-h.released
	return nil
}

// supervised runs a supervisor whose handlers are all h.
type supervised struct {
	*supervisor
	reloads chan struct{}
	stop    context.CancelFunc
	ended   chan error
	log     *output
}

func supervise(t *testing.T, path string, h delivery.Handler) *supervised {
	t.Helper()
	load := func() (*config.Config, error) {
		return config.Load(path, "", destinations.Registry(".", io.Discard, io.Discard), vars{}.lookup)
	}
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	sd, err := systemd.New(vars{}.lookup)
	if err != nil {
		t.Fatal(err)
	}
	s := &supervised{reloads: make(chan struct{}), ended: make(chan error, 1), log: newOutput()}
	s.supervisor = newSupervisor(c, origin{path: path}, load, s.log, nil, sd, slog.New(slog.NewTextHandler(s.log, nil)))
	s.opener = func(*config.Config, *slog.Logger) opener {
		return func(string, config.Destination) (delivery.Handler, io.Closer, error) {
			return h, closerFunc(func() error { return nil }), nil
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = stop
	go func() { s.ended <- s.run(ctx, s.reloads) }()
	t.Cleanup(stop)
	return s
}

// TestHungDelivery: while a delivery does not end, no other relay of its outbox begins: a daemon of one outbox ends; of
// many, that outbox is down, also if it was removed and comes back; and a stop is no clean one.
func TestHungDelivery(t *testing.T) {
	t.Parallel()
	const text = "version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\nrelay: {shutdown_timeout: 10ms}\n" +
		"destinations: {audit: {type: log, concurrency: %d}}\nroutes: [{match: '*', to: audit}]\n%s"
	for name, c := range map[string]struct {
		many string
		then func(t *testing.T, s *supervised, write func(concurrency int, many string)) (err error)
	}{
		"one": {"", func(_ *testing.T, s *supervised, write func(int, string)) error {
			write(2, "")
			s.reloads <- struct{}{}
			return <-s.ended
		}},
		"one of many": {"outboxes: {list: [{name: one}]}\n", func(t *testing.T, s *supervised, write func(int, string)) error {
			t.Helper()
			write(2, "outboxes: {list: [{name: other, schema: other}]}\n")
			s.reloads <- struct{}{}
			s.log.await(t, `"removed":["one"]`)
			write(2, "outboxes: {list: [{name: one}]}\n")
			s.reloads <- struct{}{}
			s.log.await(t, `"outbox":"one","err":"a delivery has not ended: restart notifyd`)
			return s.member("one").failure()
		}},
		"stop": {"outboxes: {list: [{name: one}]}\n", func(_ *testing.T, s *supervised, _ func(int, string)) error {
			s.stop()
			return <-s.ended
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			h := &hung{called: make(chan struct{}, 1), released: make(chan struct{})}
			release := sync.OnceFunc(func() { close(h.released) })
			defer release()
			path := file(t, fmt.Sprintf(text, url, 1, c.many))
			s := supervise(t, path, h)
			publishTo(t, url, "order.placed", order)
			<-h.called
			err := c.then(t, s, func(concurrency int, many string) {
				t.Helper()
				testenv.WriteFile(t, path, fmt.Sprintf(text, url, concurrency, many))
			})
			if !errors.Is(err, notifyd.ErrShutdownIncomplete) {
				t.Errorf("%v, want ErrShutdownIncomplete\n%s", err, s.log.text())
			}
			if n := strings.Count(s.log.text(), "relay started"); n != 1 {
				t.Errorf("%d relays have begun", n)
			}
			release()
			s.stop()
			if name == "one of many" {
				if err := <-s.ended; err != nil {
					t.Error(err) // the outbox was down, and no relay had to be stopped
				}
			}
		})
	}
}

// TestSharedHandlers: outboxes share a handler while its settings are the same; a destination that has changed gets
// another one beside it; the last one to give a handler back closes it.
func TestSharedHandlers(t *testing.T) {
	t.Parallel()
	parse := func() *config.Config {
		t.Helper()
		c, err := config.Parse("notifyd.yaml", []byte("version: 1\ndestinations: {audit: {type: file, path: "+t.TempDir()+"/events.jsonl}, other: {type: log}}\nroutes: [{match: '*', to: [audit, other]}]\n"),
			destinations.Registry(".", io.Discard, io.Discard), vars{}.lookup)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	shared, log := newSharedHandlers(), slog.New(slog.DiscardHandler)
	open := func(c *config.Config, purpose string) (delivery.Handler, func() int) {
		t.Helper()
		h, closer, err := shared.opener(c, log)(purpose, c.Destinations[0])
		if err != nil {
			t.Fatal(err)
		}
		return h, func() int {
			t.Helper()
			for range 2 { // a second time does nothing
				if err := closer.Close(); err != nil {
					t.Error(err)
				}
			}
			return len(shared.slot(handlerKey{purpose, "audit"}).all)
		}
	}
	old := parse()
	first, closeFirst := open(old, "")
	second, closeSecond := open(old, "")
	alerts, closeAlerts := open(old, "alerts")
	changed, closeChanged := open(parse(), "") // another directory
	if first != second || first == alerts || first == changed {
		t.Errorf("%p, %p, for alerts %p, changed %p", first, second, alerts, changed)
	}
	if left := []int{closeFirst(), closeSecond(), closeChanged(), closeAlerts()}; fmt.Sprint(left) != "[2 1 0 0]" {
		t.Errorf("handlers left after each is given back: %v", left)
	}
}
