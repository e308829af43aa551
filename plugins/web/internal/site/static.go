package site

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
)

//go:embed static templates
var files embed.FS

// sums are the first digits of the SHA-256 of the static files, by name. An address of a file has it, so that a browser
// keeps the file until its content changes.
var sums = func() map[string]string {
	found := map[string]string{}
	all, _ := fs.Glob(files, "static/*") // the pattern is a constant, and the files are compiled in
	for _, file := range all {
		text, _ := files.ReadFile(file)
		sum := sha256.Sum256(text)
		found[path.Base(file)] = hex.EncodeToString(sum[:6])
	}
	return found
}()

// asset is the address of a static file.
func asset(name string) string { return "/static/" + sums[name] + "/" + name }

// kinds are the types of the static files.
var kinds = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

func static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	text, err := files.ReadFile("static/" + name)
	kind, known := kinds[path.Ext(name)]
	if err != nil || !known || r.PathValue("sum") != sums[name] {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(text)
}
