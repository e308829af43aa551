module github.com/pannier/pannier/tools/minisign

go 1.26.8

tool aead.dev/minisign/cmd/minisign

require (
	aead.dev/minisign v0.3.0 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/term v0.46.0 // indirect
)
