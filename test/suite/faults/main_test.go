package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
)

// patient lets nodes run without servers for much longer than even a slow machine needs to start the servers.
const patient = `
heartbeat_ttl = "2s"
stop_after    = "10m"
stop_margin   = "4m"
`

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == writes {
		if err := write(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testns.Main(m, 3)
}
