"""The authoring half: makes locks. It may use any library; nothing else imports it."""
