// Command embedded is a program with a relay, its health, metrics and web console, and an ordered stop: docs/library.md
// explains its parts.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/observe/admin"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := shop(log); err != nil {
		log.Error("the shop has stopped", "err", err)
		os.Exit(1)
	}
}

func shop(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close() // after Run has returned

	if err := outboxsql.MigratePool(ctx, pool); err != nil {
		return err
	}

	relay, err := notifyd.New(pool, notifyd.Config{Logger: log})
	if err != nil {
		return err
	}
	err = relay.Handle("order.placed", notifyd.Destination{
		Name: "stock",
		Handler: delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
			log.InfoContext(ctx, "reserve", "event", e.DedupeID(), "order", e.AggregateID)
			return nil
		}),
	})
	if err != nil {
		return err
	}

	ops, err := admin.New(admin.Config{
		Token:   handlers.NewSecret(os.Getenv("ADMIN_TOKEN")), // 16 characters or more
		Console: &admin.Console{},
		Logger:  log,
	}, relay)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: "127.0.0.1:9470", Handler: ops, ReadHeaderTimeout: 10 * time.Second}
	server.RegisterOnShutdown(ops.Close)

	return run(ctx, relay, server)
}

// run stops the relay and the server when ctx ends or one of them fails.
func run(ctx context.Context, relay *notifyd.Relay, server *http.Server) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return relay.Run(ctx) })
	group.Go(func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(within)
	})
	return group.Wait()
}
