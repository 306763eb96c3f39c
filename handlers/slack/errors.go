package slack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// fault is the subject of a refusal.
type fault uint8

const (
	faultUnknown     fault = iota // suspected to be the event's
	faultMessage                  // text, blocks and other parts of a message
	faultChannel                  // the channel, or the rights in it
	faultThread                   // the message to reply to
	faultCredentials              // the token
	faultDestination              // Slack itself, or the rights of the app
	faultThrottled                // too many messages
)

// faultOf sorts the error codes of chat.postMessage and incoming webhooks. See https://docs.slack.dev/reference/methods/chat.postMessage and
// https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks.
func faultOf(code string) (f fault, cure string) {
	switch code {
	case "msg_too_long", "msg_blocks_too_long", "no_text", "missing_text_or_fallback_or_attachments",
		"invalid_blocks", "invalid_blocks_format", "invalid_attachments", "attachment_payload_limit_exceeded", "too_many_attachments",
		"invalid_metadata_format", "invalid_metadata_schema", "metadata_too_large", "invalid_payload", "markdown_text_conflict":
		return faultMessage, "fix the event, or text and blocks"
	case "channel_not_found", "user_not_found":
		return faultChannel, "check channel; into a private one the app must be invited"
	case "not_in_channel":
		return faultChannel, "invite the app into the channel, or give it the scope chat:write.public"
	case "is_archived", "channel_is_archived":
		return faultChannel, "unarchive the channel, or name another"
	case "restricted_action", "restricted_action_read_only_channel", "restricted_action_thread_only_channel",
		"restricted_action_non_threadable_channel", "action_prohibited", "posting_to_general_channel_denied",
		"channel_type_not_supported", "duplicate_channel_not_found", "cannot_dm_bot", "messages_tab_disabled", "user_disabled",
		"slack_connect_blocked_file_type", "external_channel_migrating", "as_user_not_supported":
		return faultChannel, "let an administrator allow posting there, or name another channel"
	case "thread_not_found", "invalid_thread_ts", "cannot_reply_to_message", "message_not_found":
		return faultThread, "check thread_ts"
	case "invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive", "invalid_token", "not_allowed_token_type":
		return faultCredentials, "give a valid bot token"
	case "missing_scope", "no_permission":
		return faultDestination, "give the app the scope chat:write, and install it again"
	case "org_login_required", "team_added_to_org", "team_access_not_granted", "access_denied", "accesslimited",
		"ekm_access_denied", "enterprise_is_restricted", "two_factor_setup_required", "team_not_found",
		"metadata_must_be_sent_from_app":
		return faultDestination, "let an administrator of the workspace look at the app"
	case "no_service", "no_service_id", "no_active_hooks", "no_team", "team_disabled", "invalid_service":
		return faultDestination, "the webhook is gone: make a new one and set webhook_url"
	case "deprecated_endpoint", "method_deprecated", "unknown_method", "invalid_arg_name", "invalid_charset", "invalid_form_data",
		"invalid_post_type", "missing_post_type":
		return faultDestination, "check api_url, and proxies on the way"
	case "internal_error", "fatal_error", "service_unavailable", "request_timeout", "rollup_error", "team_load_error":
		return faultDestination, ""
	case "ratelimited", "rate_limited", "message_limit_exceeded", "too_many_requests":
		return faultThrottled, ""
	default:
		return faultUnknown, ""
	}
}

// faultOfStatus sorts answers without a known code.
func faultOfStatus(status int) fault {
	switch status {
	case http.StatusTooManyRequests:
		return faultThrottled
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return faultUnknown
	default:
		// Redirects, proxies that want a password, missing pages, 5xx.
		return faultDestination
	}
}

// verdict returns the error of Deliver for an answer. Nothing else decides that. rctx
// is the context of the request, and ctx that of the delivery.
func (h *Handler) verdict(ctx, rctx context.Context, a *answer) error {
	switch {
	case a.ok:
		return nil
	case a.status == 0 || a.status == http.StatusOK && a.code == "" && a.isCut():
		return h.silence(ctx, rctx, a)
	case a.status == http.StatusOK && a.code == "":
		err := fmt.Errorf("slack: the server that answers is not Slack (check api_url or webhook_url, and proxies): %s", h.clean(string(a.body)))
		return delivery.Unavailable(err)
	}
	if a.code == "" {
		a.code = codeIn(a.body)
	}
	what, cure := faultOf(a.code)
	if what == faultUnknown && a.status != http.StatusOK {
		what = faultOfStatus(a.status)
	}
	err := errors.New("slack: " + h.describe(a, cure))
	if a.retryAfter > 0 {
		h.gate.hold(a.retryAfter) // also for deliveries that wait for their turn
		err = delivery.RetryAfter(a.retryAfter, err)
	}
	if what == faultThrottled {
		return delivery.Throttled(a.retryAfter, err)
	}
	return h.classify(what, err)
}

func (h *Handler) classify(what fault, err error) error {
	permanent := delivery.Permanent
	switch what {
	case faultMessage:
		return permanent(err)
	case faultChannel:
		// A channel that is the same for every event is the destination's: no event
		// must die of a renamed channel or a missing invitation.
		if isFixed(h.templates.channel) {
			return delivery.Unavailable(err)
		}
		return permanent(err)
	case faultThread:
		if isFixed(h.templates.threadTS) {
			return delivery.Unavailable(err)
		}
		return permanent(err)
	case faultCredentials:
		return delivery.Unauthorized(err)
	case faultDestination:
		return delivery.Unavailable(err)
	default:
		return err
	}
}

func isFixed(t *tmpl.Template) bool {
	if t == nil {
		return true
	}
	_, constant := t.Constant()
	return constant
}

// silence classifies a request that was not answered.
func (h *Handler) silence(ctx, rctx context.Context, a *answer) error {
	what := "no connection"
	if a.written.Load() {
		what = "the message is sent, but not answered: maybe posted, it may come twice"
	}
	cause := context.Cause(rctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("slack: %s: %w", what, context.Cause(ctx))
	case cause != nil && a.written.Load():
		// The message may be the cause: it must not be posted without end.
		return fmt.Errorf("slack: %s: %w", what, cause)
	case cause != nil:
		return delivery.Unavailable(fmt.Errorf("slack: %s: %w", what, cause))
	default:
		err := cmp.Or(a.sendError, a.bodyError, a.readError)
		err = unwrapURL(err)
		return delivery.Unavailable(&oneline.Error{Text: "slack: " + what + ": " + h.clean(err.Error()), Cause: err})
	}
}

// unwrapURL takes off the errors that repeat the URL.
func unwrapURL(err error) error {
	for {
		u, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = u.Err
	}
}

// isCut reports whether an answer ended before it was whole. A whole answer that is
// not JSON is a different fault.
func (a *answer) isCut() bool {
	if a.readError == nil {
		return a.bodyError != nil
	}
	_, syntax := errors.AsType[*json.SyntaxError](a.readError)
	_, kind := errors.AsType[*json.UnmarshalTypeError](a.readError)
	return !syntax && !kind
}

// codeRegexp matches Slack's error codes.
var codeRegexp = regexp.MustCompile(`^[a-z][a-z_]{2,60}$`)

// codeIn returns the code in a body, "" if there is none.
func codeIn(body []byte) string {
	var said struct {
		Error string `json:"error"`
	}
	word := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &said) == nil && said.Error != "" {
		word = said.Error
	}
	if codeRegexp.MatchString(word) {
		return word
	}
	return ""
}

// describe returns Slack's answer in one line.
func (h *Handler) describe(a *answer, cure string) string {
	var b strings.Builder
	if a.status != http.StatusOK {
		fmt.Fprintf(&b, "HTTP %d %s", a.status, http.StatusText(a.status))
	}
	said := a.code
	if said == "" {
		said = h.clean(string(a.body))
	}
	if said != "" && b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(said)
	if len(a.details) > 0 {
		b.WriteString(": " + h.clean(strings.Join(a.details, "; ")))
	}
	if cure != "" {
		b.WriteString(" (" + cure + ")")
	}
	return b.String()
}

// clean makes a text from outside fit for an error.
func (h *Handler) clean(text string) string { return oneline.Reply(text, h.redact) }
