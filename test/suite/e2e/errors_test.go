package e2e

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

var update = flag.Bool("update", false, "write what the commands of TestErrorTexts print to testdata/errors.txt")

// What the command line says of the failures that people meet is what testdata/errors.txt has: what failed, on what,
// why, and what to do next, each once, without names of gRPC methods.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	d := driver{id: "local"}
	volume(h, d, "data", "single-node-writer", "")
	volume(h, d, "other", "single-node-writer", "")
	workload := func(id, source string) string {
		return h.Write(id+".hcl", fmt.Sprintf("workload %q {\n  volume \"v\" {\n    source = %q\n    destination = \"/v\"\n  }\n}\n",
			id, source))
	}
	h.Run("workload", "start", workload("web", "data"))
	h.Run("volume", "snapshot", "create", "data", "before")
	made := func(id, access, more string) string {
		return h.Write(id+".hcl", volumeSpec(d, id, access, "file-system", more))
	}
	got := fails(t, h, [][]string{
		{"volume", "status", "nope"},
		{"volume", "delete", "nope", "-yes"},
		{"volume", "delete", "data", "-yes"},
		{"volume", "deregister", "data"},
		{"volume", "detach", "data", "nonode"},
		{"volume", "expand", "other", "1MiB"},
		{"volume", "list", "-driver", "nosuch"},
		{"volume", "list", "-external", "-driver", "nosuch"},
		{"volume", "create", made("modes", "multi-node-multi-writer", "")},
		{"volume", "create", made("fs", "single-node-writer", "parameters {\n  fsType = \"zfs\"\n}\n")},
		{"volume", "create", made("of", "single-node-writer", "snapshot_id = \"nope\"\n")},
		{"volume", "create", made("clone", "single-node-writer", "clone_id = \"nope\"\n")},
		{"volume", "create", h.Write("nodriver.hcl", volumeSpec(driver{id: "nosuch"}, "x", "single-node-writer",
			"file-system", ""))},
		{"volume", "create", h.Write("data.hcl", volumeSpec(driver{id: "nosuch"}, "data", "single-node-writer",
			"file-system", ""))},
		{"volume", "create", h.Write("bad.hcl", "id = \"x\"\nsize = 3\n")},
		{"volume", "create", h.Path("missing.hcl")},
		{"volume", "register", made("reg", "single-node-writer", "external_id = \"vol-nope\"\n")},
		{"volume", "modify", "other", "-parameter", "nosuch=1"},
		{"volume", "snapshot", "create", "other", "before"},
		{"volume", "snapshot", "delete", "local", "nope"},
		{"volume", "snapshot", "list", "-driver", "nosuch"},
		{"volume", "snapshot", "group", "status", "local", "nope"},
		{"workload", "start", workload("second", "data")},
		{"workload", "start", workload("lost", "nope")},
		{"workload", "stop", "nope"},
		{"driver", "status", "nosuch"},
		{"driver", "restart", "nosuch"},
		{"plugin", "swap", "nosuch"},
		{"plugin", "rollback", "csi-bridge"},
		{"node", "status", "nope"},
		{"acl", "token", "self"},
		{"keyring", "list"},
		{"-address", "unix://" + h.Path("none.sock"), "status"},
	})
	asks := testhost.New(t, "acl {\n  enabled = true\n}\n")
	asks.Start()
	asks.Run("acl", "policy", "apply", "reads", asks.Write("reads.hcl", "namespace \"default\" {\n  policy = \"read\"\n}\n"))
	_, secret, _ := strings.Cut(asks.Run("acl", "token", "create", "-name", "reader", "-policy", "reads"), "Secret")
	secret, _, _ = strings.Cut(strings.TrimSpace(secret), "\n")
	reader := asks.Write("reader", secret)
	unknown := asks.Write("unknown", "5f2b1c1e-0000-4000-8000-000000000000")
	got += fails(t, asks, [][]string{
		{"-token-file", reader, "volume", "status", "nope"},
		{"-token-file", reader, "volume", "detach", "data", "a"},
		{"-token-file", reader, "workload", "start", asks.Write("web.hcl", "workload \"web\" {}\n")},
		{"-token-file", reader, "plugin", "swap", "csi-bridge"},
		{"-token-file", reader, "node", "drain", "-enable", "a"},
		{"-token-file", reader, "operator", "raft", "list-peers"},
		{"-token-file", unknown, "status"},
	})
	text := got
	for _, changes := range []string{
		`vol-[0-9a-f]{32}`, `\d+(\.\d+)?(µs|ms|s)\b`, `\d{4}-\d\d-\d\dT[0-9:]+Z`, `"[^"]+" "sids"`, `accessor [0-9a-f]{16}`,
	} {
		text = regexp.MustCompile(changes).ReplaceAllString(text, "...")
	}
	for _, never := range []string{"rpc error", "VolumeGroupSnapshot", "CreateVolume", "storage(", " ID "} {
		if strings.Contains(text, never) {
			t.Errorf("a text has %q", never)
		}
	}
	if *update {
		check.NoError(t, os.WriteFile("testdata/errors.txt", []byte(text), 0o600))
	}
	want, err := os.ReadFile("testdata/errors.txt")
	check.NoError(t, err)
	wanted := strings.Split(string(want), "\n\n")
	for i, one := range strings.Split(text, "\n\n") {
		if i >= len(wanted) || one != wanted[i] {
			t.Errorf("printed\n%s\n, which is not in testdata/errors.txt (go test ./test/suite/e2e -run TestErrorTexts -update)", one)
		}
	}
}

// fails runs commands that must fail, and returns what they print.
func fails(t *testing.T, h *testhost.Host, commands [][]string) string {
	t.Helper()
	var got strings.Builder
	for _, args := range commands {
		r := h.Try(args...)
		if r.Code == 0 {
			t.Errorf("pannier %s succeeds", strings.Join(args, " "))
		}
		fmt.Fprintf(&got, "$ pannier %s\n%s-> %d\n\n", strings.Join(args, " "), r.Stderr, r.Code)
	}
	return strings.ReplaceAll(got.String(), h.Path(""), "$WORK")
}
