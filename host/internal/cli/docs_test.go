package cli

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clitest"
)

const docs = "../../../docs"

func TestReference(t *testing.T) {
	root := New(Options{}).rootCommand()
	clitest.Reference(t, root)
	clitest.Pages(t, root)
	page := string(check.Must(os.ReadFile(filepath.Join(docs, "cli.md")))(t))
	for _, cmd := range root.Commands() {
		if !cmd.Hidden && !strings.Contains(page, "`"+cmd.Name()) {
			t.Errorf("%q is not in docs/cli.md", cmd.CommandPath())
		}
	}
}

// The HCL examples in the reference pages are accepted.
func TestDocumentedSpecsParse(t *testing.T) {
	blocks := regexp.MustCompile("(?s)\n```hcl\n(.*?)```")
	agent := func(path string) error {
		_, err := config.Load(config.Source{
			Paths:       []string{path},
			Environment: func(string) (string, bool) { return "", false },
		})
		return err
	}
	volume := func(path string) error { _, err := config.ReadVolume(path); return err }
	workload := func(path string) error { _, err := config.ReadWorkload(path); return err }
	agentOrVolume := func(path string) error {
		text := check.Must(os.ReadFile(path))(t)
		if !strings.Contains(string(text), "plugin_id") {
			return agent(path)
		}
		// The files with secrets are the reader's.
		secret := filepath.Join(t.TempDir(), "secret")
		check.NoError(t, errors.Join(os.WriteFile(secret, []byte("s"), 0o600),
			os.WriteFile(path, regexp.MustCompile(`file://[^"]+`).ReplaceAll(text, []byte("file://"+secret)), 0o600)))
		return volume(path)
	}
	for pattern, parse := range map[string]func(path string) error{
		"configuration.md":      agent,
		"operations/forming.md": agent,
		// These hosts are in a cluster, so their configuration also needs TLS.
		"operations/tuning.md": func(path string) error { return errors.Join(addTLS(path), agent(path)) },
		"drivers.md":           agentOrVolume,
		"drivers/*.md":         agentOrVolume,
		"volume-spec.md":       volume,
		"workload-spec.md":     workload,
		"consul.md": func(path string) error {
			if strings.Contains("\n"+string(check.Must(os.ReadFile(path))(t)), "\nworkload ") {
				return workload(path)
			}
			return agent(path)
		},
	} {
		pages := check.Must(filepath.Glob(filepath.Join(docs, pattern)))(t)
		if len(pages) == 0 {
			t.Errorf("there is no page %s", pattern)
		}
		for _, page := range pages {
			found := blocks.FindAllSubmatch(check.Must(os.ReadFile(page))(t), -1)
			if len(found) == 0 {
				t.Errorf("%s shows no HCL", page)
			}
			for _, block := range found {
				path := filepath.Join(t.TempDir(), "example.hcl")
				check.NoError(t, os.WriteFile(path, block[1], 0o644))
				if err := parse(path); err != nil {
					t.Errorf("%s:\n%s\n%v", page, block[1], err)
				}
			}
		}
	}
}

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```")
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	testName  = regexp.MustCompile(`\bTest[A-Z]\w+`)
)

// The volumes on a page of docs/drivers name drivers that the page has a block for.
func TestVolumesOfDocumentedDrivers(t *testing.T) {
	pages := check.Must(filepath.Glob(filepath.Join(docs, "drivers/*.md")))(t)
	if len(pages) < 10 {
		t.Errorf("docs/drivers has %d pages, want ten or more", len(pages))
	}
	for _, path := range pages {
		page := string(check.Must(os.ReadFile(path))(t))
		volumes := regexp.MustCompile(`(?m)^plugin_id += "(.*)"$`).FindAllStringSubmatch(page, -1)
		if len(volumes) == 0 && !strings.Contains(page, "\n  ephemeral_volumes {}\n") {
			t.Errorf("%s has no volume", path)
		}
		for _, v := range volumes {
			if !strings.Contains(page, "\ncsi_driver \""+v[1]+"\" {\n") {
				t.Errorf("%s has a volume of driver %q, and no csi_driver block for it", path, v[1])
			}
		}
	}
}

// anchors returns the link targets in a page, derived from its headings like GitHub does.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		text := strings.ToLower(notAnchor.ReplaceAllString(m[1], ""))
		found[strings.ReplaceAll(text, " ", "-")] = true
	}
	for _, m := range regexp.MustCompile(`<a name="([^"]+)">`).FindAllStringSubmatch(page, -1) {
		found[m[1]] = true
	}
	return found
}

// TestLinksOfThePages checks the links between the documents.
func TestLinksOfThePages(t *testing.T) {
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
	list.Dir = filepath.Join(docs, "..")
	pages := strings.Fields(string(check.Must(list.Output())(t)))
	if len(pages) < 40 {
		t.Errorf("the pages are %q", pages)
	}
	for _, page := range pages {
		page = filepath.Join(docs, "..", page)
		text := codeBlock.ReplaceAllString(string(check.Must(os.ReadFile(page))(t)), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if anchor != "" && !anchors(string(check.Must(os.ReadFile(target))(t)))[anchor] {
				t.Errorf("%s links to %s: no such heading", page, m[1])
			}
		}
	}
}

// TestGuaranteesHaveTests checks that the tests named in docs/guarantees.md exist.
func TestGuaranteesHaveTests(t *testing.T) {
	root := filepath.Join(docs, "..")
	tests := map[string]bool{}
	check.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	}))
	page := string(check.Must(os.ReadFile(filepath.Join(docs, "guarantees.md")))(t))
	for _, name := range testName.FindAllString(strings.ReplaceAll(page, "TestEvents…", ""), -1) {
		if !tests[name] {
			t.Errorf("docs/guarantees.md names %s, which is not a test", name)
		}
	}
	for _, m := range regexp.MustCompile("`((?:cluster|host|plugins|sdk|test)(?:/[a-z0-9/-]+)?)`").FindAllStringSubmatch(
		page, -1) {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("docs/guarantees.md names %s: %v", m[1], err)
		}
	}
}

// addTLS adds the settings that a host in a cluster requires to a configuration.
func addTLS(path string) error {
	const block = "tls {\n  ca_file = \"ca.pem\"\n  cert_file = \"cert.pem\"\n  key_file = \"key.pem\"\n}\n" +
		"encrypt_file = \"gossip.key\"\nbind_addr = \"192.0.2.11\"\n"
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(block)
	return errors.Join(err, f.Close())
}
