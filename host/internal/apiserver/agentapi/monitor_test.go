package agentapi

import (
	"fmt"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// A caller that does not read loses lines and is told how many. The logger never waits.
func TestMonitorLosesLines(t *testing.T) {
	m := &monitored{lines: make(chan *hostv1.MonitorResponse, 2)}
	for i := range 5 {
		fmt.Fprintf(m, "line %d\n", i)
	}
	var got []string
	read := func() {
		one := <-m.lines
		got = append(got, fmt.Sprint(one.GetLine(), " lost ", one.GetLost()))
	}
	read()
	fmt.Fprint(m, "line 5\n")
	read()
	read()
	if all := strings.Join(got, ", "); all != "line 0 lost 0, line 1 lost 0, line 5 lost 3" {
		t.Error(all)
	}
}
