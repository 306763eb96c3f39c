package testenv

import (
	"context"
	"fmt"
)

// ExampleDatabase is [Database] for a runnable example, which has no testing.TB to fail:
// it panics without PostgreSQL. The database lives as long as the shared server.
func ExampleDatabase(ctx context.Context) (url string) {
	server, err := postgres.get(ctx)
	if err != nil {
		panic(fmt.Errorf("the examples need PostgreSQL (make setup installs it): %w", err))
	}
	name := databaseName("example")
	if err := postgres.administer(ctx, "CREATE DATABASE "+name); err != nil {
		panic(fmt.Errorf("create the database of an example: %w", err))
	}
	return server.URL(name)
}
