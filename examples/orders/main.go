// Command orders is a small shop over HTTP. A client that repeats its request has
// placed one order, its customer gets one mail, and one piece leaves the stock.
// README.md explains how.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/inbox/idempotency"
)

// Timeouts of the server. A client that is cut off repeats its request.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = time.Minute
	idleTimeout  = 2 * time.Minute
	stopWithin   = 30 * time.Second
)

// config is the configuration from the environment.
type config struct {
	database  string            // DATABASE_URL
	redis     string            // REDIS_URL; "" keeps the keys in PostgreSQL
	smtp      string            // SMTP_ADDR, host:port
	listen    string            // LISTEN
	customers map[string]string // CUSTOMERS: token=address,token=address
}

func fromEnvironment() (config, error) {
	c := config{
		database:  os.Getenv("DATABASE_URL"),
		redis:     os.Getenv("REDIS_URL"),
		smtp:      os.Getenv("SMTP_ADDR"),
		listen:    os.Getenv("LISTEN"),
		customers: map[string]string{},
	}

	if c.listen == "" {
		c.listen = "127.0.0.1:8080"
	}

	for pair := range strings.SplitSeq(os.Getenv("CUSTOMERS"), ",") {
		token, address, ok := strings.Cut(pair, "=")
		if !ok || token == "" {
			return c, errors.New("set CUSTOMERS to token=address, with commas between several")
		}
		c.customers[token] = address
	}

	if c.database == "" || c.smtp == "" {
		return c, errors.New("set DATABASE_URL, and SMTP_ADDR to the host:port of a mail server")
	}
	return c, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	c, err := fromEnvironment()
	if err == nil {
		err = run(ctx, c, slog.Default(), func(addr string) { fmt.Println("the shop is at http://" + addr) })
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		stop()
		os.Exit(1) //nolint:gocritic // the signal handlers are removed above
	}
}

// run runs the shop until ctx ends. ready is called with its address.
func run(ctx context.Context, c config, log *slog.Logger, ready func(addr string)) error {
	pool, err := pgxpool.New(ctx, c.database)
	if err != nil {
		return errors.New("DATABASE_URL is not a URL of PostgreSQL") // the error may hold its password
	}
	defer pool.Close()

	keys, closeKeys, err := openKeys(ctx, c)
	if err != nil {
		return err
	}
	defer closeKeys()

	mail, err := mailer(c.smtp)
	if err != nil {
		return err
	}
	defer mail.Close() //nolint:errcheck // no delivery is under way

	s, err := newShop(ctx, pool, keys, mail, shop{log: log, customers: c.customers})
	if err != nil {
		return err
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.listen)
	if err != nil {
		return err
	}
	return s.serve(ctx, listener, keys, ready)
}

// serve runs the parts until one of them or ctx ends, and then ends the others.
func (s *shop) serve(ctx context.Context, listener net.Listener, keys idempotency.Store, ready func(addr string)) error {
	server := &http.Server{
		Handler:      s.http,
		ReadTimeout:  readTimeout,
		WriteTimeout: writeTimeout,
		IdleTimeout:  idleTimeout,
	}

	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup

	wg.Go(func() { end(s.relay.Run(ctx)) })
	wg.Go(func() { s.purge(ctx, keys) })
	wg.Go(func() { end(server.Serve(listener)) })

	select {
	case <-s.relay.Ready():
		ready(listener.Addr().String())
	case <-ctx.Done():
	}
	<-ctx.Done()

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	err := server.Shutdown(last) // waits for the handlers, which hold their keys
	wg.Wait()

	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// openKeys returns the store of idempotency keys. In PostgreSQL the store has a separate
// pool, so that it never waits for handlers that hold all connections of their pool.
func openKeys(ctx context.Context, c config) (keys idempotency.Store, closeKeys func(), err error) {
	if c.redis == "" {
		pool, err := pgxpool.New(ctx, c.database)
		if err != nil {
			return nil, nil, errors.New("DATABASE_URL is not a URL of PostgreSQL")
		}
		keys, err = idempotency.NewPostgres(pool, idempotency.DefaultSchema)
		return keys, pool.Close, err
	}

	o, err := redis.ParseURL(c.redis)
	if err != nil {
		return nil, nil, errors.New("REDIS_URL is not a URL of Redis") // the error may hold its password
	}

	o.ContextTimeoutEnabled = true // otherwise a Redis that hangs would delay requests
	client := redis.NewClient(o)
	keys, err = idempotency.NewRedis(func(ctx context.Context, script string, keys []string, args ...any) ([]string, error) {
		return redis.NewScript(script).Run(ctx, client, keys, args...).StringSlice()
	}, "orders:")
	return keys, func() { _ = client.Close() }, err
}

func mailer(addr string) (*email.Handler, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("SMTP_ADDR: %w", err)
	}

	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, errors.New("SMTP_ADDR: the port is not a number")
	}

	return email.New(email.Config{
		Host:    host,
		Port:    port,
		TLS:     "none", // keep the default, mandatory, for a remote server
		From:    "Shop <shop@example.com>",
		To:      email.List{"{{ .Payload.email }}"},
		Subject: "Your order {{ .Payload.order }}",
		Text:    "One {{ .Payload.item }} is on its way.",
	})
}
