// Package events has the commands on events: publish, events, dlq and template.
package events
