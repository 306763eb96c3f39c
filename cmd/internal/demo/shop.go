package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/outbox"
)

// The event types of the shop.
const (
	orderPlaced   = "order.placed"
	stockReserved = "stock.reserved"
)

// eventsPerOrder is how many events the transaction of an order writes.
const eventsPerOrder = 2

// shop places orders. An order and its events share one transaction. Some of the transactions are rolled back, as after a
// refused card.
type shop struct {
	pool   *pgxpool.Pool
	schema string

	mu         sync.Mutex
	placed     map[string]time.Time // committed orders, and when
	rolledBack map[string]bool
}

func newShop(pool *pgxpool.Pool, schema string) *shop {
	return &shop{pool: pool, schema: schema, placed: make(map[string]time.Time), rolledBack: make(map[string]bool)}
}

func (s *shop) table() string { return pgx.Identifier{s.schema, "demo_orders"}.Sanitize() }

func (s *shop) open(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+s.table()+
		" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, total_cents int NOT NULL)")
	if err != nil {
		return fmt.Errorf("create the shop's table: %w", err)
	}
	return nil
}

// errCardRefused makes order roll back.
var errCardRefused = errors.New("card refused")

// order places one order. An error of card, which is called before the commit, rolls
// back the order with its events.
func (s *shop) order(ctx context.Context, card func() error) error {
	total := 500 + rand.IntN(20000)                                    //nolint:gosec // an order of the demo
	customer := fmt.Sprintf("customer%d@example.com", rand.IntN(1000)) //nolint:gosec // the same
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}

	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after the commit

	var number int64
	err = tx.QueryRow(ctx, "INSERT INTO "+s.table()+" (customer, total_cents) VALUES ($1, $2) RETURNING id", customer, total).Scan(&number)
	if err != nil {
		return fmt.Errorf("insert an order: %w", err)
	}
	id := strconv.FormatInt(number, 10)

	err = outbox.WriteTo(ctx, tx, s.schema,
		outbox.Event{
			Type: orderPlaced, AggregateType: "order", AggregateID: id,
			Payload: map[string]any{"order": number, "email": customer, "total_cents": total},
		},
		outbox.Event{
			Type: stockReserved, AggregateType: "order", AggregateID: id,
			Payload: map[string]any{"order": number, "items": 1 + total%3},
		})
	if err != nil {
		return err
	}

	if err := card(); err != nil {
		s.note(id, time.Time{})
		return err
	}

	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit an order: %w", err)
	}

	s.note(id, time.Now())
	return nil
}

// note records an order with the time of its commit, or zero if it was rolled back.
func (s *shop) note(id string, committed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if committed.IsZero() {
		s.rolledBack[id] = true
	} else {
		s.placed[id] = committed
	}
}

func (s *shop) committed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.placed)
}

func (s *shop) refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rolledBack)
}

const (
	// meanPause is the mean time between orders.
	meanPause = 40 * time.Millisecond
	// refusedShare is the share of the orders that are rolled back.
	refusedShare = 0.15
)

// place places orders at random intervals until Orders are committed. The second one is always rolled back, so that even
// a short demo shows that such an order sends nothing.
func (d *demo) place(ctx context.Context) error {
	for n := 0; d.shop.committed() < d.Orders; n++ {
		pause := time.Duration(rand.ExpFloat64() * float64(meanPause)) //nolint:gosec // an interval of the demo
		if !sleep.For(ctx, pause) {
			return context.Cause(ctx)
		}

		card := func() error {
			if n == 1 || rand.Float64() < refusedShare { //nolint:gosec // the same
				return errCardRefused
			}
			return nil
		}

		if err := d.shop.order(ctx, card); err != nil && !errors.Is(err, errCardRefused) {
			return err
		}
		d.progress()
	}
	return nil
}

// subjectPrefix is the subject of a mail without the number of the order.
const subjectPrefix = "Your order "

// mailConfig is the same as an entry under destinations in a configuration file.
func mailConfig(host string, port int, ca string) email.Config {
	return email.Config{
		Host: host, Port: port, CAFile: ca,
		From:    "Corner Shop <shop@example.com>",
		To:      email.List{"{{ .Payload.email }}"},
		Subject: subjectPrefix + "{{ .Payload.order }}",
		Text:    "Thank you for order {{ .Payload.order }}.\n\nTotal: {{ money .Payload.total_cents \"EUR\" }}\n",
		HTML:    "<p>Thank you for order <b>{{ .Payload.order }}</b>.</p><p>Total: {{ money .Payload.total_cents \"EUR\" }}</p>",
	}
}
