package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/notifyd/notifyd/inbox/idempotency"
)

// A client sends its order twice, because the first answer was lost.
func Example() {
	orders := 0
	placeOrder := func(w http.ResponseWriter, _ *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "order %d", orders)
	}
	once, err := idempotency.New(idempotency.Options{
		Store: idempotency.NewMemory(), // NewPostgres or NewRedis in production
		Scope: func(r *http.Request) (string, bool) {
			user, _, ok := r.BasicAuth() // the user that authentication has found
			return user, ok
		},
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once(http.HandlerFunc(placeOrder)))

	for _, body := range []string{"lamp", "lamp", "chair"} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		r.SetBasicAuth("ann", "secret")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		answer, _, _ := strings.Cut(w.Body.String(), ",")
		fmt.Printf("%d %s, replayed: %q\n", w.Code, answer, w.Header().Get("Idempotency-Replayed"))
	}
	// Output:
	// 201 order 1, replayed: ""
	// 201 order 1, replayed: "true"
	// 422 {"status":422, replayed: ""
}
