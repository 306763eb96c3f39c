package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func ExampleNewPostgres() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, testenv.ExampleDatabase(ctx))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	if err := idempotency.CreatePostgres(ctx, pool, idempotency.DefaultSchema); err != nil {
		panic(err)
	}
	keys, err := idempotency.NewPostgres(pool, idempotency.DefaultSchema)
	if err != nil {
		panic(err)
	}
	once, err := idempotency.New(idempotency.Options{Store: keys, Scope: idempotency.Everyone})
	if err != nil {
		panic(err)
	}
	handler := once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("the handler runs")
		w.WriteHeader(http.StatusCreated)
	}))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders", nil)
		r.Header.Set(idempotency.Header, "8e03978e-40d5-43dd-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// the handler runs
	// 201
	// 201
}
