package notifyd

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// idleCutter is a way to a server on which no connection lasts that is silent for a second, as through some NAT
// gateways and proxies, only sooner.
type idleCutter struct {
	target string
	listen net.Listener
	work   sync.WaitGroup
	cuts   atomic.Int64
}

const cutAfter = time.Second

func startIdleCutter(t *testing.T, target string) *idleCutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &idleCutter{target: target, listen: l}
	c.work.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed below
			}
			c.work.Go(func() { c.forward(in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.work.Wait()
	})
	return c
}

// forward forgets a connection without a word to either side but the end of the socket.
func (c *idleCutter) forward(in net.Conn) {
	out, err := net.Dial("tcp", c.target)
	if err != nil {
		_ = in.Close()
		return
	}
	idle := time.AfterFunc(cutAfter, func() {
		c.cuts.Add(1)
		_, _ = in.Close(), out.Close()
	})
	defer idle.Stop()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
		both.Go(func() {
			_, _ = io.Copy(to, &reads{from, func() { idle.Reset(cutAfter) }})
			_, _ = in.Close(), out.Close()
		})
	}
	both.Wait()
}

// reads tells of each read.
type reads struct {
	net.Conn
	tell func()
}

func (b *reads) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if n > 0 {
		b.tell()
	}
	return n, err
}

// TestIdleCut: connections that are cut while nothing happens cost no event.
func TestIdleCut(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		cfg := pool.Config()
		port := cfg.ConnConfig.Port
		cutter := startIdleCutter(t, net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(port))))
		through, ok := cutter.listen.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatal("not TCP")
		}
		cfg.ConnConfig.Host, cfg.ConnConfig.Port, cfg.ConnConfig.Fallbacks = "127.0.0.1", uint16(through.Port), nil
		cut, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cut.Close)
		h, called := errands(func(context.Context) error { return nil })
		// Polls, canaries and proofs that are rarer than the cuts.
		r, err := New(cut, WithPollInterval(time.Minute), WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Handle("mail", "*", h); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		<-r.Ready()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for range 3 {
			for before := cutter.cuts.Load(); cutter.cuts.Load() < before+2; {
				<-tick.C
			}
			execute(t, pool, insertThree)
			for range 3 {
				<-called
			}
		}
	})
}
