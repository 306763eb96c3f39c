package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe/admin"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// The health, the metrics and the console of a relay, below /ops of the program's own server.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	pool := openExample(ctx)
	defer pool.Close()
	relay, err := newShop(pool, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	server := httptest.NewUnstartedServer(nil)
	if err := serve(server.Config, relay, "0123456789abcdef0123456789abcdef"); err != nil {
		panic(err)
	}
	server.Start()

	running := make(chan error)
	go func() { running <- relay.Run(ctx) }()
	<-relay.Ready()
	for _, path := range []string{"/ops/readyz", "/ops/metrics", "/ops/console/"} {
		response, err := server.Client().Get(server.URL + path)
		if err != nil {
			panic(err)
		}
		fmt.Println(path, response.StatusCode, response.Request.URL.Path)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	stop()
	fmt.Println("stopped:", <-running)
	_ = server.Config.Shutdown(context.Background())
	// Output:
	// /ops/readyz 200 /ops/readyz
	// /ops/metrics 401 /ops/metrics
	// /ops/console/ 200 /ops/console/login
	// stopped: <nil>
}

func newShop(pool *pgxpool.Pool, log *slog.Logger) (*notifyd.Relay, error) {
	relay, err := notifyd.New(pool, notifyd.Config{
		Logger:  log,
		Program: notifyd.Program{Version: "v1.4.0"}, // in `notifyd status`, and at /version
	})
	if err != nil {
		return nil, err
	}
	err = relay.Handle("order.placed", notifyd.Destination{
		Name: "stock", // stored with each delivery: keep it from release to release
		Handler: delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
			return reserve(ctx, e.AggregateID)
		}),
		Lane: delivery.Lane{Concurrency: 16},
	})
	return relay, err
}

func serve(server *http.Server, relay *notifyd.Relay, token string) error {
	ops, err := admin.New(admin.Config{
		Prefix:  "/ops",
		Token:   handlers.NewSecret(token),
		Metrics: prometheus.DefaultGatherer, // those of your program, at the same address
		Console: &admin.Console{},           // leave it out for health and metrics alone
		Logger:  slog.Default(),
	}, relay)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/", ops)
	server.Handler = mux
	server.RegisterOnShutdown(ops.Close) // ends the live pages of the console
	return nil
}

func run(ctx context.Context, relay *notifyd.Relay, server *http.Server) error {
	group, ctx := errgroup.WithContext(ctx) // if one of them fails, all stop
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

func newTenants(pool *pgxpool.Pool, schemas ...string) (relays []*notifyd.Relay, err error) {
	shared := notifyd.NewShared(5*time.Second, slog.Default()) // one listening connection for all of them
	for _, schema := range schemas {
		relay, err := notifyd.New(pool, notifyd.Config{Schema: schema, Outbox: schema, Shared: shared})
		if err != nil {
			return nil, err
		}
		stock := delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
			return reserve(ctx, e.Outbox+"/"+e.AggregateID)
		})
		if err := relay.Handle("order.placed", notifyd.Destination{Name: "stock", Handler: stock}); err != nil {
			return nil, err
		}
		relays = append(relays, relay)
	}
	return relays, nil
}

type pager struct{ page func(text string) }

func (p pager) Observe(i delivery.Incident) {
	switch i.Kind {
	case delivery.IncidentDead, delivery.IncidentDown, delivery.IncidentHang:
		go p.page(fmt.Sprintf("%s %s: %v", i.Kind, i.Destination, i.Err)) // Observe has to return at once
	default: // it is in the log
	}
}

// reserve is what the shop does for an order.
func reserve(context.Context, string) error { return nil }

// openExample returns a pool on a fresh database.
func openExample(ctx context.Context) *pgxpool.Pool {
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err != nil {
		panic(err)
	}
	if err := migrate(ctx, pool); err != nil {
		panic(err)
	}
	return pool
}

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return outboxsql.MigratePool(ctx, pool)
}
