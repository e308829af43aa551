package newplugin

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"

	nodedirs "github.com/pannier/pannier/examples/plugins/node-dirs"
	pythondirs "github.com/pannier/pannier/examples/plugins/python-dirs"
	"github.com/pannier/pannier/sdk/proto"
)

// SDK is the module that plugins are written with.
const SDK = "github.com/pannier/pannier/sdk"

// Plugin is what to write.
type Plugin struct {
	// Kind is one of Kinds.
	Kind string
	// Lang is one of Langs; empty: go.
	Lang string
	// Dir is the target: a folder that is empty or does not exist. Its name is the plugin's.
	Dir string
	// Module, SDKDir and SDKVersion are for Go. Module is the module's path; empty: example.com/NAME.
	Module string
	// SDKDir is a checkout of pannier, or of its folder sdk, that the module is built with in place of a release:
	// go.mod gets a replace directive.
	SDKDir string
	// SDKVersion is the release of SDK that the module is built with, such as "v1.2.0";
	// empty: the go command chooses.
	SDKVersion string
}

// Langs are the languages that there are templates for.
var Langs = []string{"go", "node", "python"}

// Kinds lists the kinds of plugins that have templates.
func Kinds() []string {
	files, _ := fs.Glob(templates, "templates/*/plugin.go.tmpl") // the pattern is valid
	kinds := make([]string, 0, len(files))
	for _, f := range files {
		kinds = append(kinds, filepath.Base(filepath.Dir(f)))
	}
	return kinds
}

//go:embed templates
var templates embed.FS

// filled has the values for the templates.
type filled struct {
	Plugin
	Name string
	SDK  string
}

// Write writes the module and returns the names of its files. It overwrites nothing.
func Write(p Plugin) (files []string, err error) {
	f, err := p.check()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the plugin's folder: %w", err)
	}
	dirs := []string{"templates", "templates/" + p.Kind}
	if p.foreign() {
		dirs = []string{"templates/" + p.Lang}
		if files, err = f.writeExample(); err != nil {
			return nil, err
		}
	}
	for _, dir := range dirs {
		entries, err := templates.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name, isTemplate := strings.CutSuffix(e.Name(), ".tmpl")
			if !isTemplate {
				continue
			}
			if name == "gitignore" {
				name = "." + name // go:embed skips files that begin with a dot
			}
			if err := f.write(dir+"/"+e.Name(), name); err != nil {
				return nil, err
			}
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return files, nil
}

func (f *filled) write(from, name string) error {
	// {{ and }} occur in Go.
	t, err := template.New(path.Base(from)).Delims("[[", "]]").ParseFS(templates, from)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, f); err != nil {
		return err
	}
	content := text.Bytes()
	if path.Ext(name) == ".go" {
		if content, err = format.Source(content); err != nil { // the order of imports depends on the kind
			return fmt.Errorf("format %s: %w", name, err)
		}
	}
	return f.put(name, content)
}

// put writes a file of the plugin.
func (f *filled) put(name string, content []byte) error {
	path := filepath.Join(f.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the plugin: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write the plugin: %w", err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write the plugin: %w", err)
	}
	return nil
}

// foreign reports whether the plugin is in a language that an example in the repository begins, and not templates.
func (p Plugin) foreign() bool { return p.Lang != "" && p.Lang != "go" }

// writeExample writes the example in the plugin's language under the plugin's name, with what it needs of sdk/proto.
func (f *filled) writeExample() (files []string, err error) {
	sources, example := nodedirs.Files, nodedirs.Name
	protoDir := "proto"
	protocols := []string{"pannier/plugin/v1/plugin.proto", "pannier/plugin/" + f.Kind + "/v1/" + f.Kind + ".proto"}
	if f.Lang == "python" {
		sources, example = pythondirs.Files, pythondirs.Name
		protoDir = ""
		protocols = []string{"descriptors.binpb"}
	}
	names, err := fs.Glob(sources, "*")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		content, err := sources.ReadFile(name)
		if err != nil {
			return nil, err
		}
		content = bytes.ReplaceAll(content, []byte(nodedirs.ProtoDir), []byte("./proto"))
		content = bytes.ReplaceAll(content, []byte(example), []byte(f.Name))
		if err := f.put(name, content); err != nil {
			return nil, err
		}
	}
	for _, name := range protocols {
		content, err := proto.Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		name = path.Join(protoDir, name)
		if err := f.put(name, content); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// goodName matches valid file names of plugins.
var goodName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`) })

// goodModule matches module paths roughly; the go command checks them exactly.
var goodModule = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._~/-]*$`)

func (p Plugin) check() (*filled, error) {
	if !slices.Contains(Kinds(), p.Kind) {
		return nil, fmt.Errorf("kind %q is not one of %s", p.Kind, strings.Join(Kinds(), ", "))
	}
	if p.Lang != "" && !slices.Contains(Langs, p.Lang) {
		return nil, fmt.Errorf("language %q is not one of %s", p.Lang, strings.Join(Langs, ", "))
	}
	if p.foreign() && (p.Kind != "storage" || p.Module != "" || p.SDKDir != "") {
		return nil, fmt.Errorf("in %s there is the kind storage only, without a module and an SDK", p.Lang)
	}
	abs, err := filepath.Abs(p.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the plugin's folder: %w", err)
	}
	f := &filled{Plugin: p, Name: filepath.Base(abs), SDK: SDK}
	if !goodName().MatchString(f.Name) {
		return nil, fmt.Errorf("the folder's name is the plugin's, and %q is none: take 1 to 64 letters, digits, - and _",
			f.Name)
	}
	entries, err := os.ReadDir(abs)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("look into the plugin's folder: %w", err)
	case len(entries) > 0:
		return nil, fmt.Errorf("%s is not empty: a new plugin needs a folder of its own", p.Dir)
	}
	if f.Module == "" {
		f.Module = "example.com/" + f.Name
	}
	if !goodModule.MatchString(f.Module) {
		return nil, fmt.Errorf("%q is not a module's path such as example.com/%s", f.Module, f.Name)
	}
	if p.SDKDir != "" {
		if f.SDKDir, err = checkout(p.SDKDir); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// checkout returns the absolute path of the SDK in dir, which is a checkout of pannier or the SDK's folder in one.
func checkout(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	if _, err := os.Stat(filepath.Join(abs, "sdk", "go.mod")); err == nil {
		abs = filepath.Join(abs, "sdk")
	}
	mod, err := os.ReadFile(filepath.Join(abs, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("look into the checkout: %w", err)
	}
	if first, _, _ := strings.Cut(string(mod), "\n"); strings.TrimSpace(first) != "module "+SDK {
		return "", fmt.Errorf("%s is not a checkout of %s: its go.mod says %q", dir, SDK, first)
	}
	return abs, nil
}
