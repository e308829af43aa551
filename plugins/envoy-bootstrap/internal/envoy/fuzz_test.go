package envoy

import (
	"encoding/json"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Any template gives a bootstrap within the bound, or is a mistake of the proxy's configuration.
func FuzzTemplate(f *testing.F) {
	f.Add(`{"node": {"id": "{{ .ProxyID }}"}}`)
	f.Add(`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`)
	f.Add("{{range 9}}{{.}}{{end}}")
	f.Fuzz(func(t *testing.T, text string) {
		out, _, err := Bootstrap(t.Context(), proxy(map[string]any{keyTemplate: text}))
		if err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil && !json.Valid(out) {
			t.Errorf("%q gives %s", text, out)
		}
	})
}
