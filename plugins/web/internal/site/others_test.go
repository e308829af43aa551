package site

import (
	"context"
	"errors"
	"testing"

	"connectrpc.com/connect"
)

// A node that does not answer holds up nobody: the others' answers are there, and it is said which one is late.
func TestOthersThatHang(t *testing.T) {
	got, why := map[string]int{}, map[string]string{}
	others(t.Context(), []string{"a", "hangs", "refuses", "b"}, func(ctx context.Context, node string) (int, error) {
		switch node {
		case "hangs":
			<-ctx.Done()
			return 0, connect.NewError(connect.CodeDeadlineExceeded, ctx.Err())
		case "refuses":
			return 0, connect.NewError(connect.CodePermissionDenied, errors.New("no"))
		}
		return len(node), nil
	}, func(node string, answer int, reason string) { got[node], why[node] = answer, reason })
	if len(got) != 4 || got["a"] != 1 || got["b"] != 1 || why["a"] != "" || why["b"] != "" {
		t.Errorf("got %v, %v", got, why)
	}
	if why["hangs"] != "it has not answered within a second" || why["refuses"] != "no" {
		t.Errorf("the reasons are %q", why)
	}
}

// The name of a node in an address is only that.
func TestNodeInAnAddress(t *testing.T) {
	for node, want := range map[string]string{
		"": "/plugins", "n-2.a_b": "/plugins?node=n-2.a_b", "a&live=1#x": "/plugins?node=a%26live%3D1%23x",
		`"><script>`: "/plugins?node=%22%3E%3Cscript%3E",
	} {
		if got := onNode("/plugins", node); got != want {
			t.Errorf("%q: %s, want %s", node, got, want)
		}
	}
}
