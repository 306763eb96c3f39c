package main

import (
	"context"
	_ "embed" // schema.sql
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/inbox"
	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/outbox"
	outboxsql "github.com/notifyd/notifyd/sql"
)

//go:embed schema.sql
var schemaSQL string

// orderPlaced is the type of the shop's events, and placed their payload.
const orderPlaced = "order.placed"

type placed struct {
	Order int64  `json:"order"`
	Item  string `json:"item"`
	Email string `json:"email"`
}

// shop takes orders and handles their events.
type shop struct {
	pool      *pgxpool.Pool
	log       *slog.Logger
	customers map[string]string // mail addresses by bearer token
	http      http.Handler
	relay     *notifyd.Relay
}

// newShop creates the tables, the relay and the handler. keys stores idempotency
// keys, mail sends mails; the caller closes both, and the pool.
func newShop(ctx context.Context, pool *pgxpool.Pool, keys idempotency.Store, mail *email.Handler, s shop) (*shop, error) {
	s.pool = pool
	if err := s.createTables(ctx); err != nil {
		return nil, err
	}

	once, err := idempotency.New(idempotency.Options{
		Store: keys, Log: s.log,
		Scope: func(r *http.Request) (string, bool) {
			customer, ok := s.customer(r)
			return customer, ok
		},
	})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("POST /orders", once(http.HandlerFunc(s.placeOrder)))
	s.http = mux

	s.relay, err = notifyd.New(pool, notifyd.Config{Logger: s.log})
	if err != nil {
		return nil, err
	}

	return &s, errors.Join(
		s.relay.Add(notifyd.Destination{Name: "mail", Handler: mail}),
		s.relay.Add(notifyd.Destination{Name: "stock", Handler: delivery.HandlerFunc(s.takeFromStock)}),
		s.relay.Route(orderPlaced, "mail", "stock"),
	)
}

func (s *shop) createTables(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, schemaSQL); err != nil {
		return fmt.Errorf("create the tables of the shop: %w", err)
	}

	if err := outboxsql.MigratePool(ctx, s.pool); err != nil {
		return err
	}

	return errors.Join(inbox.Create(ctx, s.pool, inbox.DefaultSchema), idempotency.CreatePostgres(ctx, s.pool, idempotency.DefaultSchema))
}

// customer returns the mail address of the request's sender.
func (s *shop) customer(r *http.Request) (address string, ok bool) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", false
	}
	address, ok = s.customers[token]
	return address, ok
}

// placeOrder stores an order and its event in one transaction. The middleware
// lets it run once for a key. If the process dies before the answer is stored, it
// runs again: then the order with the key exists already.
func (s *shop) placeOrder(w http.ResponseWriter, r *http.Request) {
	var order struct {
		Item string `json:"item"`
	}
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Item == "" {
		http.Error(w, `say what you want: {"item": "lamp"}`, http.StatusBadRequest)
		return
	}

	customer, _ := s.customer(r)
	key, err := idempotency.Key(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	id, err := s.insert(r.Context(), customer, key, order.Item)
	if err != nil {
		s.log.ErrorContext(r.Context(), "an order could not be placed", "error", err)
		http.Error(w, "not now", http.StatusServiceUnavailable) // not stored: the client tries again
		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/"+strconv.FormatInt(id, 10))
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]int64{"order": id})
}

func (s *shop) insert(ctx context.Context, customer, key, item string) (id int64, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		id, err = insert(ctx, tx, customer, key, item)
		return err
	})
	return id, err
}

func insert(ctx context.Context, tx pgx.Tx, customer, key, item string) (id int64, err error) {
	err = tx.QueryRow(ctx, `INSERT INTO orders (customer, request, item) VALUES ($1, $2, $3)
		ON CONFLICT DO NOTHING RETURNING id`, customer, key, item).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, tx.QueryRow(ctx, `SELECT id FROM orders WHERE customer = $1 AND request = $2`, customer, key).Scan(&id)
	}
	if err != nil {
		return 0, err
	}
	return id, outbox.Write(ctx, tx, outbox.Event{
		Type: orderPlaced, AggregateType: "order", AggregateID: strconv.FormatInt(id, 10),
		Payload: placed{Order: id, Item: item, Email: customer},
	})
}

// takeFromStock handles an event once, however often it is delivered.
func (s *shop) takeFromStock(ctx context.Context, e *delivery.Event) error {
	var p placed
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return delivery.Permanent(err)
	}

	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := inbox.Once(ctx, tx, inbox.Consumer{Name: "stock"}, e.DedupeID(), func(ctx context.Context) error {
			_, err := tx.Exec(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE item = $1`, p.Item)
			return err
		})
		return err
	})
}

// The tables of keys and events are kept small.
const (
	purgeEvery = time.Hour
	keepEvents = 30 * 24 * time.Hour
)

// purge removes, until ctx ends, events and keys that no relay and no client will repeat.
func (s *shop) purge(ctx context.Context, keys idempotency.Store) {
	for tick := time.Tick(purgeEvery); ; {
		if _, _, err := inbox.Purge(ctx, s.pool, inbox.Retention{Keep: keepEvents}); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "purge of events", "error", err)
		}

		if table, ok := keys.(*idempotency.Postgres); ok { // Redis expires keys by itself
			if _, _, err := table.Purge(ctx, idempotency.DefaultPurgeBatch, idempotency.DefaultPurgeBudget); err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "purge of keys", "error", err)
			}
		}

		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}
