package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// bystander is a table in each database that the system does not use.
const bystander = "peers_bystander"

// foreigners are open transactions that do not belong to the system.
type foreigners []*pgx.Conn

// foreign returns the statements that begin them. One has written and is idle. The other holds an old snapshot, as a
// migration, a dump, a report or a forgotten session of the same database does.
func foreign() []string {
	return []string{
		"BEGIN; INSERT INTO " + bystander + " VALUES (1)",
		"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM " + bystander,
	}
}

// openForeign opens one transaction for each begin.
func openForeign(ctx context.Context, db database, begin []string) (all foreigners, err error) {
	for _, statements := range begin {
		conn, err := pgx.Connect(ctx, db.url)
		if err == nil {
			all = append(all, conn)
			_, err = conn.Exec(ctx, statements)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a foreign transaction: %w", err), all.close(ctx))
		}
	}
	return all, nil
}

// close rolls them back. A second call does nothing.
func (f foreigners) close(ctx context.Context) (err error) {
	for _, conn := range f {
		err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	return err
}
