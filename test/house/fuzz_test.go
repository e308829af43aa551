package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// parsers lists what reads something that somebody else writes, with the fuzz tests that prove what must hold of it.
var parsers = map[string][]string{
	"requests to the API, in each encoding":   {"host/internal/apiserver FuzzAPI", "host/internal/apiserver FuzzRequest"},
	"ACL policies":                            {"host/internal/apiserver/acl FuzzParse"},
	"the agent's configuration":               {"host/internal/config FuzzAgent"},
	"specifications of volumes and workloads": {"host/internal/config FuzzVolume", "host/internal/config FuzzWorkload"},
	"sizes":                       {"internal/bytesize FuzzParse"},
	"variables in specifications": {"host/internal/system/vars FuzzEscape"},
	"templates of bootstraps":     {"plugins/envoy-bootstrap/internal/envoy FuzzTemplate"},
	"archives, sums and signatures of plugins":               {"host/internal/pluginhost/install FuzzArchive", "host/internal/pluginhost/install FuzzRegistry", "host/internal/system/signing FuzzSums", "host/internal/system/signing FuzzSignature"},
	"a plugin's handshake and log":                           {"host/internal/managed/goplugin FuzzHandshake", "host/internal/system/process FuzzLogLine"},
	"drivers' answers":                                       {"plugins/csi-bridge/internal/bridge FuzzAnswers", "plugins/csi-bridge/internal/driver FuzzAnswer"},
	"Consul's answers":                                       {"plugins/envoy-bootstrap/internal/generator FuzzAddress", "plugins/envoy-bootstrap/internal/generator FuzzAnswers", "plugins/sids/internal/tokens FuzzAnswers", "plugins/consul-services/internal/services FuzzAnswers"},
	"what a program hands over to the next":                  {"host/internal/system/handover FuzzInherit"},
	"Docker's and Podman's answers, names of control groups": {"host/internal/system/owner FuzzContainerNames", "host/internal/system/owner FuzzOf"},
	"mountinfo and /proc/PID/stat":                           {"host/internal/system/mountuse FuzzMountTable", "internal/procfs FuzzStat"},
	"addresses at the credentials' socket":                   {"host/internal/consul/credentials FuzzAddress"},
	"the first bytes at the port, and frames of HTTP/2":      {"host/internal/peer/transport FuzzPort", "host/internal/peer/transport FuzzALPN", "host/internal/peer/transport FuzzFrames"},
	"names of certificates":                                  {"host/internal/system/pki FuzzIdentityOf"},
	"tags and messages of the gossip":                        {"cluster/discovery FuzzGossip"},
	"requests of Docker":                                     {"plugins/docker-volume/internal/volumes FuzzRequest"},
	"raft's streams":                                         {"cluster/raftnode FuzzStreams"},
	"commands and queries":                                   {"cluster/command FuzzDecode", "cluster/command FuzzDecodeQuery"},
	"snapshots":                                              {"cluster/state FuzzReadSnapshot"},
	"records of the journal":                                 {"host/internal/workload FuzzRecord"},
	"records of processes, which the next agent takes over":  {"host/internal/managed FuzzRecord"},
	"texts that are printed":                                 {"internal/printable FuzzString"},
}

// Each fuzz test is in the list, and each that the list names is there: make fuzz runs all.
func TestParsers(t *testing.T) {
	listed := map[string]bool{}
	for parser, tests := range parsers {
		if len(tests) == 0 {
			t.Errorf("%s: no fuzz test", parser)
		}
		for _, test := range tests {
			listed[test] = true
		}
	}
	function := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	for _, room := range []string{"cluster", "drivers", "host", "internal", "plugins", "sdk"} {
		root := os.DirFS("../..")
		err := fs.WalkDir(root, room, func(path string, _ fs.DirEntry, err error) error {
			if ok, _ := filepath.Match("*_test.go", filepath.Base(path)); err != nil || !ok {
				return err
			}
			text, err := fs.ReadFile(root, path)
			for _, found := range function.FindAllStringSubmatch(string(text), -1) {
				name := filepath.Dir(path) + " " + found[1]
				if !listed[name] {
					t.Errorf("%s is not in the list of parsers", name)
				}
				delete(listed, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		t.Errorf("there is no %s", name)
	}
}
