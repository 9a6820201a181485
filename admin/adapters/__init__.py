"""The adapters section: the list, one adapter, one version with its calibration report, uploads."""
