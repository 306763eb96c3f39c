package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/notifyd/notifyd"
)

func main() {
	database := flag.String("database-url", os.Getenv("DATABASE_URL"), "PostgreSQL with the outbox")
	service := flag.String("warehouse", "127.0.0.1:50051", "address of the gRPC service")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *database, *service)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, database, service string) (err error) {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()

	// In production, use credentials.NewTLS. The relay retries; retries of gRPC would
	// only hide failures.
	conn, err := grpc.NewClient(service, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}

	if err := relay.Handle("order.*", notifyd.Destination{Name: "warehouse", Handler: warehouse{conn}}); err != nil {
		return err
	}
	return relay.Run(ctx)
}
