package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Check connects, and runs the statements of a delivery without any row, in a transaction that is rolled
// back. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	within, cancel := outcome.Within(ctx, "request_timeout", h.cfg.RequestTimeout)
	defer cancel()
	l := &link{h: h}
	defer l.close(ctx)
	conn, err := l.ready(within)
	if err == nil {
		err = h.rehearse(within, conn)
	}
	if err != nil {
		return h.classify(ctx, within, err)
	}
	return nil
}

func (h *Handler) rehearse(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}

	r := rows{}
	_, err = tx.Exec(ctx, h.insert, pgx.QueryExecModeExec, h.cfg.Source,
		r.dedupeID, r.eventID, r.eventType, r.aggregateType, r.aggregateID,
		r.payload, r.payloadBytes, r.contentType, r.headers, r.createdAt)
	if err == nil {
		_, err = tx.Exec(ctx, h.others, pgx.QueryExecModeExec, h.cfg.Source, r.dedupeID, r.createdAt)
	}
	if err != nil {
		return err // the connection, and with it the transaction, ends
	}

	return tx.Rollback(ctx)
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the connection, the credentials, the table with its columns and its key, and the right to insert",
		"what constraints and triggers say of a row"
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
