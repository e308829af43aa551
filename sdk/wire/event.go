package wire

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// What an event may hold, in bytes; of MaxEventDetails keys and their values each.
const (
	MaxEventType    = 64
	MaxEventSubject = 256
	MaxEventMessage = 4096
	MaxEventDetail  = 1024
	MaxEventDetails = 32
)

// CutEvent cuts the texts of an event to what one may hold, at the end of a character,
// and replaces what is not UTF-8. Of too many details the first by name are kept. A
// plugin does it so that the event can be sent, and the host because it need not
// believe that the plugin did.
func CutEvent(e *pluginv1.Event) {
	e.Type, e.Subject = cut(e.GetType(), MaxEventType), cut(e.GetSubject(), MaxEventSubject)
	e.Message = cut(e.GetMessage(), MaxEventMessage)
	if len(e.GetDetails()) == 0 {
		return
	}
	details := make(map[string]string, min(len(e.GetDetails()), MaxEventDetails))
	for _, key := range slices.Sorted(maps.Keys(e.GetDetails())) {
		if len(details) == MaxEventDetails {
			break
		}
		details[cut(key, MaxEventDetail)] = cut(e.GetDetails()[key], MaxEventDetail)
	}
	e.Details = details
}

func cut(text string, size int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}
