package slack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// codes is the table of the error codes of chat.postMessage and incoming webhooks. A channel or a thread that is the
// same for every event is the destination's: no event must die of a renamed channel or a missing invitation. Of one that
// the event names it is unclear: with the token of another workspace no channel is found. See
// https://docs.slack.dev/reference/methods/chat.postMessage and
// https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks.
func codes() outcome.Table[string] {
	return outcome.Table[string]{
		{
			Codes: []string{
				"msg_too_long", "msg_blocks_too_long", "attachment_payload_limit_exceeded", "too_many_attachments", "metadata_too_large",
			},
			Class: outcome.Permanent, Cure: "fix the event, or text and blocks",
		},

		// The templates may be wrong for every event.
		{
			Codes: []string{
				"no_text", "missing_text_or_fallback_or_attachments", "invalid_blocks", "invalid_blocks_format", "invalid_attachments",
				"invalid_metadata_format", "invalid_metadata_schema", "invalid_payload", "markdown_text_conflict",
			},
			Class: outcome.Unclear, Cure: "fix the event, or text and blocks",
		},

		{
			Codes: []string{"channel_not_found", "user_not_found"},
			Class: outcome.Unavailable,
			Own:   outcome.Unclear,
			Cure:  "check channel; into a private one the app must be invited",
		},
		{
			Codes: []string{"not_in_channel"},
			Class: outcome.Unavailable,
			Own:   outcome.Unclear,
			Cure:  "invite the app into the channel, or give it the scope chat:write.public",
		},
		{
			Codes: []string{"is_archived", "channel_is_archived"},
			Class: outcome.Unavailable,
			Own:   outcome.Unclear,
			Cure:  "unarchive the channel, or name another",
		},
		{
			Codes: []string{
				"restricted_action", "restricted_action_read_only_channel", "restricted_action_thread_only_channel",
				"restricted_action_non_threadable_channel", "action_prohibited", "posting_to_general_channel_denied",
				"channel_type_not_supported", "duplicate_channel_not_found", "cannot_dm_bot", "messages_tab_disabled", "user_disabled",
				"slack_connect_blocked_file_type", "external_channel_migrating", "as_user_not_supported",
			},
			Class: outcome.Unavailable, Own: outcome.Unclear, Cure: "let an administrator allow posting there, or name another channel",
		},

		{
			Codes: []string{
				"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive",
				"invalid_token", "not_allowed_token_type",
			},
			Class: outcome.Unauthorized, Cure: "give a valid bot token",
		},
		{
			Codes: []string{"missing_scope", "no_permission"},
			Class: outcome.Unavailable,
			Cure:  "give the app the scope chat:write, and install it again",
		},
		{
			Codes: []string{
				"org_login_required", "team_added_to_org", "team_access_not_granted", "access_denied", "accesslimited",
				"ekm_access_denied", "enterprise_is_restricted", "two_factor_setup_required", "team_not_found",
				"metadata_must_be_sent_from_app",
			},
			Class: outcome.Unavailable, Cure: "let an administrator of the workspace look at the app",
		},

		{
			Codes: []string{"no_service", "no_service_id", "no_active_hooks", "no_team", "team_disabled", "invalid_service"},
			Class: outcome.Unavailable, Cure: "the webhook is gone: make a new one and set webhook_url",
		},
		{
			Codes: []string{
				"deprecated_endpoint", "method_deprecated", "unknown_method", "invalid_arg_name", "invalid_charset", "invalid_form_data",
				"invalid_post_type", "missing_post_type",
			},
			Class: outcome.Unavailable, Cure: "check api_url, and proxies on the way",
		},

		{
			Codes: []string{"internal_error", "fatal_error", "service_unavailable", "request_timeout", "rollup_error", "team_load_error"},
			Class: outcome.Unavailable,
		},
		{Codes: []string{"ratelimited", "rate_limited", "message_limit_exceeded", "too_many_requests"}, Class: outcome.Throttled},
	}
}

// threadCodes is [codes] for errors about the message to reply to.
func threadCodes() outcome.Table[string] {
	return outcome.Table[string]{{
		Codes: []string{"thread_not_found", "invalid_thread_ts", "cannot_reply_to_message", "message_not_found"},
		Class: outcome.Unavailable, Own: outcome.Unclear, Cure: "check thread_ts",
	}}
}

// statuses is the table for answers without a known code. Others, such as redirects, missing pages, proxies that want
// a password and 5xx, are faults of the destination.
func statuses() outcome.Table[int] {
	return outcome.Table[int]{
		{Codes: []int{http.StatusTooManyRequests}, Class: outcome.Throttled},
		{Codes: []int{http.StatusOK, http.StatusBadRequest, http.StatusUnprocessableEntity}, Class: outcome.UnclearRetry},
		{Codes: []int{http.StatusRequestEntityTooLarge}, Class: outcome.Retry},
	}
}

// destination describes failures. The path of a webhook is its secret part.
func destination(token, webhook string) *outcome.Destination {
	secrets := []string{token, webhook}
	if u, err := url.Parse(webhook); err == nil {
		secrets = append(secrets, strings.TrimPrefix(u.RequestURI(), "/"), strings.TrimPrefix(u.Path, "/"), u.RawQuery)
	}
	return outcome.New("slack", "check api_url or webhook_url, and proxies", secrets...)
}

// verdict returns the error of Deliver for an answer. No other function decides this.
// rctx is the context of the request, and ctx the context of the delivery.
func (h *Handler) verdict(ctx, rctx context.Context, a *answer) error {
	isUnknown := a.status == http.StatusOK && a.code == ""
	switch {
	case a.ok:
		return nil
	case a.status == 0, isUnknown && a.isCut():
		return h.silence(ctx, rctx, a)
	case isUnknown:
		return delivery.Unavailable(h.out.Line(outcome.Failure{
			Text: "the server that answers is not Slack: " + string(a.body), Cure: "check api_url or webhook_url, and proxies",
		}))
	}

	if a.code == "" {
		a.code = codeIn(a.body)
	}

	class, cure := codes().Find(!isFixed(h.templates.channel), a.code)
	if class == outcome.Unknown {
		class, cure = threadCodes().Find(!isFixed(h.templates.threadTS), a.code)
	}

	byStatus, _ := statuses().Find(false, a.status)
	class = cmp.Or(class, byStatus, outcome.Unavailable)

	err := error(h.out.Line(outcome.Failure{Text: a.text(), Cure: cure}))

	if a.retryAfter > 0 {
		h.gate.hold(a.retryAfter) // also for deliveries that wait for their turn
		err = delivery.RetryAfter(a.retryAfter, err)
	}

	return class.Mark(a.retryAfter, err)
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
	state := "no connection"
	if a.written.Load() {
		state = "the message is sent, but not answered: maybe posted, it may come twice"
	}
	isOver := ctx.Err() == nil && rctx.Err() != nil
	if isOver && a.written.Load() {
		// The message may be the cause: it must not be posted endlessly.
		return outcome.UnclearRetry.Mark(0, h.out.Ended(rctx, state))
	}
	return h.out.NoAnswer(ctx, rctx, state, cmp.Or(a.sendError, a.bodyError, a.readError))
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

// codeIn returns the code in a body, or "".
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

// text returns Slack's answer.
func (a *answer) text() string {
	var parts []string
	if a.status != http.StatusOK {
		parts = append(parts, outcome.Status(a.status))
	}
	if said := cmp.Or(a.code, string(a.body)); said != "" {
		parts = append(parts, said)
	}
	if len(a.details) > 0 {
		parts = append(parts, strings.Join(a.details, "; "))
	}
	return strings.Join(parts, ": ")
}
