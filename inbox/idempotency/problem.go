package idempotency

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// Problem is an answer of the middleware itself, in the form of RFC 9457.
type Problem struct {
	// Status is the status of the answer: 400, 401, 409, 410, 413, 422, 500 or 503.
	Status int `json:"status"`
	// Title describes the problem; it is the same for all problems of a kind.
	Title string `json:"title"`
	// Detail describes this occurrence, for a person. It holds no secrets.
	Detail string `json:"detail,omitempty"`
	// RetryAfter is the time until the client may try again, 0 if a retry is useless.
	RetryAfter time.Duration `json:"-"`
}

// refuse writes a problem.
func refuse(w http.ResponseWriter, _ *http.Request, p Problem) {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone
}

func noKey(err error) Problem {
	return Problem{Status: http.StatusBadRequest, Title: "Idempotency-Key is missing or malformed", Detail: err.Error()}
}

func inProgress(wait time.Duration) Problem {
	return Problem{
		Status: http.StatusConflict, Title: "A request with this Idempotency-Key is in progress",
		Detail: "Send the same request again to get its answer.", RetryAfter: wait,
	}
}

func otherRequest() Problem {
	return Problem{
		Status: http.StatusUnprocessableEntity, Title: "Idempotency-Key was used for another request",
		Detail: "Method, path, query or body differ. Use a new key for a new request.",
	}
}

func notKept() Problem {
	return Problem{
		Status: http.StatusGone, Title: "The request is done, and its answer could not be kept",
		Detail: "It was too large or was cut short. Do not repeat the request with another key: it would be done twice.",
	}
}

func unavailable(detail string, wait time.Duration) Problem {
	return Problem{
		Status:     http.StatusServiceUnavailable,
		Title:      "Idempotency cannot be guaranteed at the moment",
		Detail:     detail,
		RetryAfter: wait,
	}
}
