package pubsub

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// permission is what sending takes.
const permission = "pubsub.topics.publish"

// Check asks whether these credentials may publish to the topic, which takes no
// permission itself. Of an emulator, which has no permissions, it asks for the topic.
// It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	if h.tokens == nil {
		_, err := h.call(ctx, http.MethodGet, "", nil)
		return ofCheck(err)
	}

	answer, err := h.call(ctx, http.MethodPost, ":testIamPermissions", []byte(`{"permissions":["`+permission+`"]}`))
	if err != nil {
		return ofCheck(err)
	}

	var out struct {
		Permissions []string `json:"permissions"`
	}
	if json.Unmarshal(answer, &out) != nil {
		return delivery.Unavailable(errors.New("pubsub: the answer is not from Pub/Sub (check endpoint, and proxies)"))
	}

	// It is the same answer for a topic that does not exist.
	if !slices.Contains(out.Permissions, permission) {
		return delivery.Unavailable(errors.New("pubsub: the topic does not exist, or the credentials lack " + permission +
			" on it (check project and topic, and grant roles/pubsub.publisher)"))
	}

	return nil
}

// ofCheck marks a refusal: no event is in the request.
func ofCheck(err error) error {
	if outcome.IsRefusal(err) {
		return delivery.Unavailable(err)
	}
	return err
}

// DescribeCheck implements delivery.CheckDescriber.
func (h *Handler) DescribeCheck() (tested, untested string) {
	if h.tokens == nil {
		return "that the emulator has the topic", ""
	}
	return "the credentials, that the topic exists, and the right to publish to it", ""
}

// MaxBytes is the limit of Pub/Sub. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the body
	}
	return maxBytes
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
