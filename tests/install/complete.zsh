# What zsh makes of a line when its user presses Tab: complete.zsh FOLDER LINE. FOLDER has _ashlar.
zmodload zsh/zpty
export TERM=dumb
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D"
zpty -w shell 'show() { zle complete-word; print -r -- "<$BUFFER>"; exit }; zle -N show; bindkey "^X" show'
zpty -w -n shell "$2"$'\C-x'
zpty -r shell text '*<ashlar*>*'
print -r -- ${${text##*<}%%>*}
