package slack

import (
	"errors"
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	_, err := parseTemplates(c)
	return errors.Join(c.place(), c.content(), c.limits(), err)
}

// place checks the destination and the credentials.
func (c Config) place() error {
	var errs []error
	switch {
	case c.Token.IsZero() && c.WebhookURL.IsZero():
		errs = append(errs, field.Errorf("token", "missing: give the bot token, such as ${env:SLACK_TOKEN}, or webhook_url"))
	case !c.Token.IsZero() && !c.WebhookURL.IsZero():
		errs = append(errs, field.Errorf("webhook_url", "token is set too: take one of them out"))
	case !c.Token.IsZero():
		errs = append(errs, checkToken(c.Token.Reveal()))
		if c.Channel == "" {
			errs = append(errs, field.Errorf("channel", "missing: name the channel by its id, such as C0123456789"))
		}
	default:
		errs = append(errs, checkURL("webhook_url", c.WebhookURL.Reveal(), "https://hooks.slack.com/services/..."))
		if c.Channel != "" {
			errs = append(errs, field.Errorf("channel", "is decided by the webhook: take it out, or set token in place of webhook_url"))
		}
		if c.APIURL != "" {
			errs = append(errs, field.Errorf("api_url", "has no effect with webhook_url: take it out"))
		}
	}

	if c.APIURL != "" {
		errs = append(errs, checkURL("api_url", c.APIURL, defaultAPIURL))
	}

	return errors.Join(append(errs, tlsconf.Check(c.TLS))...)
}

// checkToken finds common mistakes for a bot token. It makes no other checks: the
// forms of tokens have changed before.
func checkToken(token string) error {
	switch {
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return field.Errorf("token", "holds white space or other letters that no token has: give xoxb-... alone")
	case strings.HasPrefix(token, "http"):
		return field.Errorf("token", "is a URL: an incoming webhook belongs into webhook_url")
	case strings.HasPrefix(token, "xapp-"):
		return field.Errorf("token", "is an app-level token, which cannot post: give the bot token, xoxb-...")
	default:
		return nil
	}
}

// checkURL never repeats the URL: it may be a secret.
func checkURL(path, text, example string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "", u.Scheme != "http" && u.Scheme != "https":
		return field.Errorf(path, "must be a URL such as %s", example)
	case u.User != nil:
		return field.Errorf(path, "must not hold a user or a password")
	case u.Fragment != "" || u.RawQuery != "" && path == "api_url":
		return field.Errorf(path, "must end with its path: take out what follows ? or #")
	case u.Scheme == "http" && !hostport.IsLoopback(u.Hostname()):
		return field.Errorf(path, "would send a secret unencrypted: write https://")
	default:
		return nil
	}
}

func (c Config) content() error {
	if strings.TrimSpace(c.Text) == "" && strings.TrimSpace(c.Blocks) == "" {
		return field.Errorf("text", "missing: write text, blocks or both")
	}
	if c.IconEmoji != "" && c.IconURL != "" {
		return field.Errorf("icon_url", "icon_emoji is set too: take one of them out")
	}
	return nil
}

func (c Config) limits() error {
	return field.Timeout("request_timeout", c.RequestTimeout, 0, defaultRequestTimeout)
}
